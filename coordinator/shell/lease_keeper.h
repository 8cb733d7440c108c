// Keeps a lease in etcd (core/lease.h): carries out its requests over etcd's JSON gateway (HTTP,
// /v3/...), and tells it the time and the answers. An answer is bounded in size and time, and one
// that is not understood is none.
//
// Control thread only. Errors: what etcd could not be asked is in the log, once in ten seconds.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/log_limit.h"
#include "base/program_options.h"
#include "base/result.h"
#include "base/time.h"
#include "coordinator/core/lease.h"

namespace lockstep::coordinator {

class LeaseKeeper {
 public:
  struct Handlers {
    std::function<void()> on_lead;
    std::function<void(const std::string& why)> on_stop;  // the lease is lost, or about to be
  };
  // `holder`: this coordinator, as others are to read it. `lease`: a new one, or one that another
  // keeper has won. Begins at once.
  LeaseKeeper(boost::asio::io_context& io, LeaseAddress address, std::string holder, Lease lease,
              Handlers handlers);
  ~LeaseKeeper();

  const Lease& lease() const { return lease_; }
  // The holder may decide now, as far as it knows.
  bool leads() const { return lease_.leading() && MonotonicNow() < lease_.leads_until(); }
  // Looks at the clock now: one that has lapsed is told to on_stop, with the reason.
  void Look() { Step(Lease::TimerFired{}); }
  // It was won, and this coordinator cannot lead now: others may.
  void Resign() { Step(Lease::Resigned{}); }
  // `done`: once etcd has heard that the next one need not wait, or is not to be reached; later.
  void End(std::function<void()> done);

 private:
  class Request;

  void Step(const Lease::Event& event);
  void CarryOut(const Lease::Action& action);
  // Posts `body` to `target`; `read` makes the event of the answer's body.
  void Ask(const std::string& target, const std::string& body,
           std::function<Lease::Event(const std::string& answer)> read);
  void OnFailed(const std::string& why);

  boost::asio::io_context& io_;
  const LeaseAddress address_;
  const std::string holder_;
  Lease lease_;
  const Handlers handlers_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<Request> asked_;
  std::function<void()> on_ended_;  // once; null: it has not ended, or that was said
  LogLimit troubles_{1, std::chrono::seconds(10)};
  // The callbacks that are under way look whether this object is still there.
  std::shared_ptr<LeaseKeeper*> self_ = std::make_shared<LeaseKeeper*>(this);
};

// Its time to live: so long after its last sign of life a holder has lost it.
Duration LeaseTtl(Duration liveness_timeout);

// Takes the lease, waiting for a holder before for two times to live. kUnavailable: another one
// holds it, or etcd does not answer; kClosed: a signal came. Blocks.
Result<Lease> AwaitLease(const LeaseAddress& address, const std::string& holder, Duration ttl);

// Keeps a lease that was taken, on a thread of its own, while its holder does not run its loop.
class LeaseHold {
 public:
  LeaseHold(const LeaseAddress& address, const std::string& holder, Lease lease);
  ~LeaseHold();
  LeaseHold(const LeaseHold&) = delete;
  LeaseHold& operator=(const LeaseHold&) = delete;

  // For the next keeper; once. It may have been lost.
  Lease Take();

 private:
  boost::asio::io_context io_{1};
  std::unique_ptr<LeaseKeeper> keeper_;
  std::thread thread_;
};

}  // namespace lockstep::coordinator
