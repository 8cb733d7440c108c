// Shows a running job to a person: on a terminal one line that is overwritten, elsewhere a line
// every few seconds.
#pragma once

#include <string>

#include "base/time.h"
#include "coordinator/job/records.h"

namespace lockstep::coordinator {

// "epoch 2  round 418  loss 0.3127  31.2 k samples/s  7 of 8 workers (worker 5 is missing)  waiting
// for worker 3 (2 of 4 units done)"
std::string ProgressText(const JobStatus& status);

class ProgressLine {
 public:
  // Standard error is a terminal or not; that is asked once.
  ProgressLine();
  // The interval at which to call Show.
  Duration interval() const;
  void Show(const JobStatus& status);
  // Ends the line, so that what is printed next stands on a line of its own.
  void Clear();

 private:
  bool terminal_;
  bool shown_ = false;
};

}  // namespace lockstep::coordinator
