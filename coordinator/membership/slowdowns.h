// The slow-downs of the job: those that workers were started with and those that were asked for at
// run time. A worker keeps its own until something is asked for at run time; from then on it is
// told whole what slows it down.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/slowdown_spec.h"
#include "coordinator/job/context.h"

namespace lockstep::coordinator {

class Slowdowns {
 public:
  explicit Slowdowns(Job* job) : job_(job) {}

  // Notes the slow-downs that a worker was started with; an error is a violation of the protocol.
  // The worker gets what the others were sent before it came.
  Status OnReady(Member& from, const std::string& lines);
  // Lines of specs, on top of those in force; a line "none" ends all before it. A spec without
  // from= begins now. Returns in words what is in force; an error changes nothing.
  Result<std::string> Request(std::string_view lines);

  // Takes the run-time requests of the coordinator before, in the form of Asked().
  void GoOnFrom(std::string_view lines);
  std::string Asked() const;

  void CheckInvariants() const;

  // The slow-downs that are not over, for people.
  std::vector<std::string> InForce() const;

 private:
  Duration Age() const { return job_->now() + job_->stopped() - job_->start.started; }
  std::vector<SlowdownSpec> Of(const Member& member) const;
  void SendTo(const Member& member) const;
  void Note(std::string text);

  Job* job_;
  std::vector<SlowdownSpec> asked_;  // at run time; at most kMaxSlowdownSpecs
  bool sent_ = false;                // something was asked for at run time
};

}  // namespace lockstep::coordinator
