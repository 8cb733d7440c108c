// Limits log lines that strangers cause: the first ones are written and the others counted. So a
// client that connects thousands of times a second does not fill a disk. It is pure: time comes in.
#pragma once

#include <cstdint>
#include <utility>

#include "base/time.h"

namespace lockstep {

class LogLimit {
 public:
  // Allows at most `lines` within `window`.
  LogLimit(std::uint64_t lines, Duration window) : lines_(lines), window_(window) {}

  // Whether this line may be written. If not, it is counted. A new window follows one that is over,
  // even if nobody has asked how many lines were left out of the old one.
  bool Allow(Time now) {
    if (now >= window_end_) {
      window_end_ = now + window_;
      written_ = 0;
      to_tell_ += std::exchange(left_out_, 0);
    }
    if (written_ >= lines_) {
      ++left_out_;
      return false;
    }
    ++written_;
    return true;
  }

  // The number of lines that were left out of the windows that are over, for one line of the log.
  // Call it now and then, and once at the end with kNever.
  std::uint64_t TakeLeftOut(Time now) {
    if (now >= window_end_) to_tell_ += std::exchange(left_out_, 0);
    return std::exchange(to_tell_, 0);
  }

  Duration window() const { return window_; }

 private:
  std::uint64_t lines_;
  Duration window_;
  Time window_end_{};
  std::uint64_t written_ = 0;
  std::uint64_t left_out_ = 0;  // of the window
  std::uint64_t to_tell_ = 0;   // of earlier windows
};

}  // namespace lockstep
