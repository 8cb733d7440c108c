#include "policies/async.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "policies/waiting.h"
#include "policies/work_none.h"

namespace lockstep::policies {
namespace {

class Async final : public ClosingRule {
 public:
  explicit Async(const AsyncOptions& options) : options_(options) {}

  std::string_view name() const override { return "async"; }

  ClosingVerdict Judge(const RoundView& view) override {
    ClosingVerdict verdict;
    if (view.finished == 0 && !view.explain) return verdict;
    const WorkerView* held_by = nullptr;
    std::uint64_t stalest = 0;
    std::uint32_t contributors = 0;
    for (const WorkerView& worker : view.workers) {
      if (worker.fenced || worker.units_given == 0) continue;
      const std::uint64_t staleness = view.round.value - worker.base.value;
      if (worker.finished_at && worker.level) {
        ++contributors;
        stalest = std::max(stalest, staleness);
        for (const PartView& part : worker.parts) {
          verdict.parts.push_back({worker.member.worker, part.part, WeightOf(view, staleness)});
        }
      } else if (staleness >= options_.staleness &&
                 (held_by == nullptr || worker.base < held_by->base)) {
        held_by = &worker;
      }
    }
    verdict.close = held_by == nullptr && !verdict.parts.empty();
    if (verdict.close) {
      verdict.reason = fmt::format("{} of {} contributions are there, the stalest by {} commits",
                                   contributors, view.with_units, stalest);
    } else if (view.explain) {
      verdict.reason =
          held_by == nullptr
              ? fmt::format("waiting for the first contribution: {}", WaitingFor(view))
              : fmt::format("waiting for worker {}, which began {} commits ago, the most allowed",
                            held_by->member.worker, view.round.value - held_by->base.value);
    }
    return verdict;
  }

  bool CanDoWithout(const RoundView&) override { return true; }

 private:
  float WeightOf(const RoundView& view, std::uint64_t staleness) const {
    if (!options_.damping || staleness < view.configured_workers) return 1.0f;
    return static_cast<float>(static_cast<double>(view.configured_workers) /
                              (1.0 + static_cast<double>(staleness)));
  }

  const AsyncOptions options_;
};

}  // namespace

Policy MakeAsync(const AsyncOptions& options) {
  Policy policy;
  policy.name = "async";
  policy.closing = std::make_unique<Async>(options);
  policy.work = MakeWorkNone();
  policy.relaxed = true;
  return policy;
}

}  // namespace lockstep::policies
