// The job's beginning: workers gather, connect to each other over one transport for the whole job.
#pragma once

#include <string>
#include <vector>

#include "base/messages.h"
#include "base/result.h"
#include "coordinator/core/context.h"

namespace lockstep::coordinator {

class Formation {
 public:
  explicit Formation(Job* job);

  Status On(Member& from, const Reached& message);
  void OnOut(const MemberId& member);
  // True when all that form reach each other: the job can begin with them.
  bool Advance();
  Time NextDeadline() const;

 private:
  void Gather();
  void ChooseTransports();
  void Form();
  bool Judge();  // true: all reach each other
  void Failed(const std::string& reason);
  std::vector<Member*> Participants() const;
  std::string Missing() const;

  Job* job_;
  Time join_deadline_ = kNever;
  std::vector<std::string> transports_;  // still to be tried, the first one now
  std::uint32_t formation_ = 0;          // number of the try
  Time deadline_;                        // of the try
  std::vector<bool> answered_;           // by slot
  BitMatrix reached_;                    // [from][to]
  std::string unreached_;                // the first failure that was reported
};

}  // namespace lockstep::coordinator
