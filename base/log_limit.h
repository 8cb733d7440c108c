// For log lines that strangers cause: the first ones are written, the others counted, so that who
// connects thousands of times a second does not fill a disk. Pure: time comes in.
#pragma once

#include <cstdint>
#include <utility>

#include "base/time.h"

namespace lockstep {

class LogLimit {
 public:
  // At most `lines` within `window`.
  LogLimit(std::uint64_t lines, Duration window) : lines_(lines), window_(window) {}

  // Whether this line may be written. If not, it is counted. A window that is over is followed by
  // the next one whether or not anybody has asked how many were left out of it.
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

  // How many were left out of the windows that are over: to be said in one line. To be asked now
  // and then, and once at the end with kNever.
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
  std::uint64_t to_tell_ = 0;   // of those before
};

}  // namespace lockstep
