// The connection handshake: from a connection to a member that is ready.
//
// Decides who gets which slot, and whether its job is this one: Hello is answered by Welcome or
// Refuse; Ready must agree with what most of the others have. In: what workers say before they are
// members, and their connections' ends. Out: members in state kJoining, refusals, evictions of who
// differs from the majority.
#pragma once

#include <map>
#include <string>

#include "base/log_limit.h"
#include "base/messages.h"
#include "base/result.h"
#include "coordinator/job/context.h"

namespace lockstep::coordinator {

class Admission {
 public:
  explicit Admission(Job* job) : job_(job), settings_(job->start.program_settings) {}

  void OnConnected(ConnectionId connection, std::string address);
  bool Waits(ConnectionId connection) const { return strangers_.contains(connection); }
  void OnDisconnected(ConnectionId connection) { strangers_.erase(connection); }
  // The first message of a connection.
  void OnFirst(ConnectionId connection, const msg::FromWorker& message);
  // The one that is put off may come again a little later.
  void PutOff(ConnectionId connection, std::string reason) {
    Refuse(connection, std::move(reason), true);
  }
  Status OnReady(Member& from, const msg::Ready& message);
  // Workers are told where to look for the next coordinator: who is there, and who joins later.
  void OnStandbys(std::vector<std::string> addresses);
  // Closes connections that say nothing.
  void Tick();
  void CloseAll(const std::string& reason);
  void CheckInvariants() const;
  std::size_t Bound() const { return 2 * std::size_t{job_->members.slots()} + 16; }

  // Settles, once, what data and what model the job is about: what the majority of the workers that
  // are ready has, so that no single one decides about the others. Workers that differ are sent
  // away; without a majority the job fails. True: all that are ready agree.
  static bool AgreeOnData(Job* job);
  // A job that has agreed on its data before begins anew. True: all that form begin with the seed's
  // parameters, and with the same.
  static bool BeginAlikeAnew(Job* job);

 private:
  struct Stranger {
    std::string address;
    Time since;
  };
  void Refuse(ConnectionId connection, std::string reason, bool try_again = false);
  // The newest decision of the coordinator before (msg::Welcome::decided).
  std::optional<HeldParameters> Decided() const;
  bool WasInTheJob(const msg::Hello& hello) const;
  // Describes how this program's settings differ from the others'; empty: they do not.
  std::string SettingsMismatch(const msg::Hello& hello) const;

  Job* job_;
  // The settings of which the job is made, or those of the first worker whose program has any.
  std::string settings_;
  std::vector<std::string> standbys_;
  LogLimit refusals_{20, std::chrono::seconds(10)};
  // Connections that have not said Hello, at most Bound(): a further one is closed at once. None of
  // them is a member's.
  std::map<ConnectionId, Stranger> strangers_;
};

// Initial parameters matter only at the start. Once the first round is committed, a new worker gets
// the job's own parameters (Joining).
bool SameInitialParameters(const Job& job, const msg::Ready& ready);

// The refusal of a worker whose initial parameters differ from the job's.
std::string InitialParametersMismatch(const Job& job, WorkerId worker, const msg::Ready& ready);

// Null: the worker does not have it.
const TransportOffer* OfferOf(const msg::Ready& ready, std::string_view transport);
PeerInfo PeerInfoOf(const Member& member, const std::string& transport, bool mapping);

}  // namespace lockstep::coordinator
