// A lease in etcd, which decides which coordinator of several leads. The lease as a value: events
// and the time go in, requests to etcd and verdicts come out (shell/lease_keeper.h carries them
// out).
//
//   looking -> taking -> leading -> over
//      ^          |
//      +----------+  another one holds the key
//
// The key of the lease is there while its holder keeps it alive. A coordinator that finds it absent
// takes a lease and creates the key with it, in one transaction, so one of several wins.
//
// Invariants: at most one request is under way. The holder leads no longer than `leads_until`,
// which is before etcd lets the lease expire. It counts by this process's clock, from when the last
// confirmed request was sent, and leaves a margin for clocks of different speed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/time.h"

namespace lockstep::coordinator {

class Lease {
 public:
  // --- events
  struct TimerFired {};
  struct Absent {};  // nobody holds the key
  struct HeldBy {    // another one does
    std::string holder;
  };
  struct Granted {
    std::int64_t id;
    Duration ttl;  // etcd may give more than was asked for
  };
  struct Taken {};  // the key is created
  struct Kept {};   // the lease lives on
  struct Gone {};   // etcd knows of no such lease
  struct Failed {   // no answer that can be used
    std::string why;
  };
  struct Resigned {};  // it was won, and this coordinator cannot lead now
  struct Ended {};     // it is of no use any more
  using Event =
      std::variant<TimerFired, Absent, HeldBy, Granted, Taken, Kept, Gone, Failed, Resigned, Ended>;

  // --- actions
  struct Look {};
  struct Grant {
    Duration ttl;
  };
  struct Take {
    std::int64_t id;
  };
  struct Keep {
    std::int64_t id;
  };
  struct Revoke {  // nobody waits for its answer
    std::int64_t id;
  };
  struct SetTimer {  // in place of the one before
    Time at;
  };
  struct Lead {};
  struct StopLeading {  // the last one
    std::string why;
  };
  using Action = std::variant<Look, Grant, Take, Keep, Revoke, SetTimer, Lead, StopLeading>;

  explicit Lease(Duration ttl) : ttl_(ttl) {}

  // The first event is TimerFired.
  void Step(Time now, const Event& event, std::vector<Action>* out);

  // The answer to the request that is under way, if any, does not come any more.
  void ForgetRequest() { asked_ = false; }

  bool leading() const { return state_ == State::kLeading; }
  // From then on its holder must not decide anything, whatever it has not heard yet.
  Time leads_until() const { return confirmed_ + ttl_ - ttl_ / 4; }
  // That holds it, as far as is known.
  const std::string& holder() const { return holder_; }
  // Why etcd gave no answer to the last request; empty: it did.
  const std::string& trouble() const { return trouble_; }
  // An answer that has not come by then counts as none.
  Duration patience() const { return ttl_ / 4; }

 private:
  enum class State { kLooking, kTaking, kLeading, kOver };

  void OnTimer(Time now, std::vector<Action>* out);
  void Ask(Time now, Action request, std::vector<Action>* out);
  void LookAgain(Time now, std::vector<Action>* out);
  void End(std::string why, std::vector<Action>* out);
  // Between two looks, or two requests to keep it.
  Duration pause() const { return ttl_ / 8; }

  Duration ttl_;
  State state_ = State::kLooking;
  std::int64_t id_ = 0;  // of the lease; 0: none
  bool asked_ = false;   // a request is under way
  Time sent_;            // the request that is under way, or the last one
  Time confirmed_;       // when the last request was sent that has given or kept the lease
  std::string holder_;
  std::string trouble_;
};

}  // namespace lockstep::coordinator
