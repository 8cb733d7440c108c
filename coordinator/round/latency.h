// The median of the latest samples: robust against the very stalls that bounds are for.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

#include "base/time.h"

namespace lockstep::coordinator {

class RecentLatency {
 public:
  void Add(Duration sample) {
    samples_[next_] = sample;
    next_ = (next_ + 1) % samples_.size();
    count_ = std::min(count_ + 1, samples_.size());
  }
  std::optional<Duration> Median() const {
    if (count_ == 0) return std::nullopt;
    auto sorted = samples_;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(count_ / 2);
    std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(count_));
    return *middle;
  }

 private:
  std::array<Duration, 63> samples_{};
  std::size_t next_ = 0;
  std::size_t count_ = 0;
};

}  // namespace lockstep::coordinator
