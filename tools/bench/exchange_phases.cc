#include "tools/bench/exchange_phases.h"

#include <algorithm>
#include <map>

namespace lockstep::bench {

std::vector<RoundPhases> PhasesOf(std::span<const WorkerReport> reports, std::uint64_t first) {
  struct Round {
    std::size_t workers = 0;
    Time sealed;
    std::array<Time, kPhases.size()> ends;
  };
  std::map<std::uint64_t, Round> rounds;
  for (const WorkerReport& report : reports) {
    for (const worker::RoundTimes& times : report.rounds) {
      if (times.round.value < first) continue;
      Round& round = rounds[times.round.value];
      ++round.workers;
      round.sealed = std::max(round.sealed, times.sealed);
      const std::array<Time, kPhases.size()> ends = {times.delivered, times.committed,
                                                     times.reduced,   times.published,
                                                     times.taken,     times.applied};
      for (std::size_t i = 0; i < ends.size(); ++i) {
        round.ends[i] = std::max(round.ends[i], ends[i]);
      }
    }
  }
  std::vector<RoundPhases> found;
  for (const auto& [number, round] : rounds) {
    if (round.workers != reports.size()) continue;
    RoundPhases phases;
    Time before = round.sealed;
    for (std::size_t i = 0; i < kPhases.size(); ++i) {
      // A phase that did not happen, or was over before, took no time.
      const Time end = std::max(before, round.ends[i]);
      phases.phases_us[i] = static_cast<double>((end - before).count()) / 1e3;
      before = end;
    }
    phases.total_us = static_cast<double>((before - round.sealed).count()) / 1e3;
    found.push_back(phases);
  }
  return found;
}

double CopiedPerByte(std::span<const WorkerReport> reports, std::uint64_t first,
                     std::uint64_t gradient_bytes) {
  double copied = 0;
  double gradients = 0;
  for (const WorkerReport& report : reports) {
    for (const worker::RoundTimes& times : report.rounds) {
      if (times.round.value < first) continue;
      copied += static_cast<double>(times.copied);
      gradients += static_cast<double>(gradient_bytes);
    }
  }
  return gradients > 0 ? copied / gradients : 0;
}

}  // namespace lockstep::bench
