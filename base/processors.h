// How many processors this process may keep busy.
#pragma once

#include <cstddef>
#include <string>

#include "base/control_groups.h"

namespace lockstep {

struct Processors {
  // That the thread that asks may run on.
  std::size_t usable = 1;
  // That it has together with processes like it on this machine: those of its control groups, at
  // most as many as their quotas allow, rounded up. Where who started it may run on no more than it
  // does, it was not held to some of them by itself, and these are the usable ones.
  std::size_t shared = 1;
};

// What cannot be read does not limit.
Processors UsableProcessors();

// --- its parts

// In a list as the kernel writes it, as "0-3,8"; 0: it cannot be read.
std::size_t ListedProcessors(const std::string& list);

// By the quota of one group, rounded up; 0: it has none.
std::size_t QuotaProcessors(const ControlGroup& group);

// `usable` and what is known of who started it, of the groups and of their quotas; 0: nothing.
Processors ProcessorsOf(std::size_t usable, std::size_t of_starter, std::size_t of_groups,
                        std::size_t quota);

}  // namespace lockstep
