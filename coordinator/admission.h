// The door: from a connection to a member that is ready. Hello is answered by Welcome or Refuse;
// Ready must agree with what the others have.
#pragma once

#include <map>
#include <string>

#include "base/messages.h"
#include "base/result.h"
#include "coordinator/job.h"

namespace lockstep::coordinator {

class Admission {
 public:
  explicit Admission(Job* job) : job_(job) {}

  void OnConnected(ConnectionId connection, std::string address);
  bool Waits(ConnectionId connection) const { return strangers_.contains(connection); }
  void OnDisconnected(ConnectionId connection) { strangers_.erase(connection); }
  // The first message of a connection.
  void OnFirst(ConnectionId connection, const FromWorker& message);
  Status On(Member& from, const Ready& message);
  // Closes connections that say nothing.
  void Tick();
  void CloseAll(const std::string& reason);
  std::size_t Bound() const { return 2 * std::size_t{job_->members.slots()} + 16; }

 private:
  struct Stranger {
    std::string address;
    Time since;
  };
  void Refuse(ConnectionId connection, std::string reason, bool try_again = false);
  std::string Disagreement(WorkerId worker, const Ready& ready) const;

  Job* job_;
  std::map<ConnectionId, Stranger> strangers_;  // have not said Hello; at most Bound()
};

// Null: the worker does not have it.
const TransportOffer* OfferOf(const Ready& ready, std::string_view transport);
PeerInfo PeerInfoOf(const Member& member, const std::string& transport, bool mapping);

}  // namespace lockstep::coordinator
