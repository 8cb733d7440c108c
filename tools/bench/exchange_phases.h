// The time of each phase of an exchange, from the notes of its workers.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tools/bench/exchange_worker.h"

namespace lockstep::bench {

// One phase follows the other; each ends when the last worker has ended it.
//   deliver  owners have what they fetch of the contributions (nothing where all is mapped)
//   commit   the commit is heard
//   reduce   shards are summed
//   publish  and announced
//   take     sums are fetched, or known to be readable in place
//   update   the parameters are updated
inline constexpr std::array<std::string_view, 6> kPhases = {"deliver", "commit", "reduce",
                                                            "publish", "take",   "update"};

struct RoundPhases {
  double total_us = 0;  // the sum of the phases: from the last seal to the last update
  std::array<double, kPhases.size()> phases_us = {};
};

// The rounds from `first` on that every worker has applied, in order. All workers use one clock,
// that of the machine.
std::vector<RoundPhases> PhasesOf(std::span<const WorkerReport> reports, std::uint64_t first);

// Bytes copied in such a round, by all workers together, for each byte of all their gradients.
double CopiedPerByte(std::span<const WorkerReport> reports, std::uint64_t first,
                     std::uint64_t gradient_bytes);

}  // namespace lockstep::bench
