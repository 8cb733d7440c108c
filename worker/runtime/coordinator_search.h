// The search for the next coordinator, after the one that this worker has followed is gone.
//
// Threads: the compute thread alone makes, asks and drops a search. Each channel that it opens has
// a network thread of its own.
// Ownership: the search owns the channel to the coordinator that it has found, until Take.
// Errors: one line for people, from Look. A coordinator that this worker cannot follow is no error.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/job_config.h"
#include "base/messages.h"
#include "base/result.h"
#include "base/time.h"
#include "worker/runtime/join.h"
#include "worker/runtime/session.h"

namespace lockstep::worker {

// How long a worker searches: job.coordinator_timeout.
Duration CoordinatorPatience(const JobConfig& config);

class CoordinatorSearch {
 public:
  struct Found {
    std::unique_ptr<CoordinatorChannel> channel;
    msg::Welcome welcome;
    std::string address;
  };
  // Logs that it begins. `addresses`: where it may be, at least one; standbys first, since one that
  // does not lead says so at once. `followed`: the welcome of the coordinator that is gone, and
  // `lost` says why it is. `followed` and `compute` outlive the search; `run_in_hand`: see Join.
  CoordinatorSearch(SessionOptions options, std::vector<std::string> addresses,
                    const msg::Welcome& followed, Duration patience, std::string lost,
                    ComputeQueue& compute, std::function<msg::RunInHand()> run_in_hand);

  // Blocks for one look, of a second or two, so that a program that waits in Next stays in hand.
  // True: the next coordinator is found. An error: none took over in time, or this worker is
  // refused.
  Result<bool> Look();
  // After Look has returned true.
  const Found& found() const { return found_; }
  Found Take() { return std::move(found_); }
  // Tells the coordinator that was found, if any, that this worker leaves.
  void Leave(const std::string& reason);

 private:
  // Of the next address. Of several each but the last is tried once. At the last, where the
  // coordinator was that is gone, trying again is the pause between two turns.
  JoinPatience Next(Duration left);
  // Once for each reason, and waits a moment.
  void SayWhyNot(const std::string& why);
  // Why this is not the coordinator to follow; empty: it is.
  std::string WhyNot(const msg::Welcome& welcome) const;

  SessionOptions options_;
  const std::vector<std::string> addresses_;
  std::size_t next_ = 0;
  Duration pause_;
  std::string said_;  // the last reason
  const msg::Welcome& followed_;
  const Duration patience_;
  const std::string lost_;
  ComputeQueue& compute_;
  const std::function<msg::RunInHand()> run_in_hand_;
  const Time began_ = MonotonicNow();
  Found found_;
};

}  // namespace lockstep::worker
