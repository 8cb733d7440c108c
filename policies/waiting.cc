#include "policies/waiting.h"

#include <fmt/format.h>

namespace lockstep::policies {

std::string WaitingFor(const RoundView& view) {
  const WorkerView* slowest = nullptr;
  std::uint32_t unfinished = 0;
  const auto left = [](const WorkerView& worker) { return worker.units_given - worker.units_done; };
  for (const WorkerView& worker : view.workers) {
    if (worker.fenced || worker.units_given == 0 || worker.finished_at) continue;
    ++unfinished;
    if (slowest == nullptr || left(worker) > left(*slowest)) slowest = &worker;
  }
  if (slowest == nullptr) return "waiting for nobody";
  const bool delivering = slowest->units_done >= slowest->units_given;
  std::string text =
      delivering
          ? fmt::format("waiting for worker {} (its sums are on their way)", slowest->member.worker)
          : fmt::format("waiting for worker {} ({} of {} units done)", slowest->member.worker,
                        slowest->units_done, slowest->units_given);
  if (unfinished > 1) {
    text += fmt::format(" and {} other{}", unfinished - 1, unfinished > 2 ? "s" : "");
  }
  return text;
}

std::vector<PartChoice> AllDelivered(const RoundView& view) {
  std::vector<PartChoice> parts;
  for (const WorkerView& worker : view.workers) {
    if (worker.fenced) continue;
    for (const PartView& part : worker.parts) {
      if (part.delivered_at) parts.push_back({worker.member.worker, part.part, 1.0f});
    }
  }
  return parts;
}

}  // namespace lockstep::policies
