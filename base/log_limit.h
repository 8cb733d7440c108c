// For log lines that strangers cause: the first ones are written, the others counted, so that who
// connects thousands of times a second does not fill a disk. Pure: time comes in.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace lockstep {

class LogLimit {
 public:
  // At most `lines` within `window`.
  LogLimit(std::uint64_t lines, Duration window) : lines_(lines), window_(window) {}

  // Whether this line may be written. If not, it is counted.
  bool Allow(Time now) {
    if (now >= window_end_ && left_out_ == 0) {
      window_end_ = now + window_;
      written_ = 0;
    }
    if (written_ >= lines_) {
      ++left_out_;
      return false;
    }
    ++written_;
    return true;
  }

  // How many were left out, once the window is over: to be said in one line. To be asked now and
  // then, and once at the end with kNever.
  std::uint64_t TakeLeftOut(Time now) {
    if (left_out_ == 0 || now < window_end_) return 0;
    const std::uint64_t count = left_out_;
    left_out_ = 0;
    return count;
  }

  Duration window() const { return window_; }

 private:
  std::uint64_t lines_;
  Duration window_;
  Time window_end_{};
  std::uint64_t written_ = 0;
  std::uint64_t left_out_ = 0;
};

}  // namespace lockstep
