#include "policies/partial.h"

#include <fmt/format.h>

#include <optional>

#include "policies/outlook.h"
#include "policies/waiting.h"

namespace lockstep::policies {
namespace {

class Partial final : public ArrivalRule {
 public:
  explicit Partial(const ArrivalOptions& options) : ArrivalRule(options, /*full_work=*/true) {}

  std::string_view name() const override { return "partial"; }

  ClosingVerdict Judge(const RoundView& view) override {
    ClosingVerdict verdict;
    if (view.round != round_ || view.started != started_) {
      round_ = view.round;
      started_ = view.started;
      cut_at_.reset();
    }
    if (view.with_units > 0 && view.finished == view.with_units && view.pending_revokes == 0) {
      Close(view, &verdict);
      verdict.reason = cut_at_
                           ? fmt::format("{} workers gave what they had after {:.1f} ms",
                                         view.with_units, Seconds(*cut_at_ - view.started) * 1e3)
                           : fmt::format("all {} workers with units finished", view.with_units);
      return verdict;
    }
    if (deadline() && !view.exact) JudgeLate(view, &verdict);
    if (!verdict.close && view.explain) verdict.reason = WaitingFor(view);
    return verdict;
  }

  bool CutsUnits() const override { return true; }

 private:
  static void Close(const RoundView& view, ClosingVerdict* verdict) {
    verdict->close = true;
    verdict->parts = AllDelivered(view);
  }

  // After the cut everybody still has the unit it is in. A worker that takes more than two usual
  // units and a quarter of the round for it is left out.
  void JudgeLate(const RoundView& view, ClosingVerdict* verdict) {
    const Time until = view.started + *deadline();
    if (view.now < until) {
      verdict->look_again = until;
      return;
    }
    if (!cut_at_) {
      cut_at_ = view.now;
      patience_ = MedianUnitTime(view) * 2 + *deadline() / 4;
      verdict->cut = true;
      verdict->reason = fmt::format("the deadline of {:.1f} ms", Seconds(*deadline()) * 1e3);
    }
    const Time end = *cut_at_ + patience_;
    if (view.now < end) {
      verdict->look_again = end;
      return;
    }
    if (view.finished < least()) return;
    Close(view, verdict);
    verdict->reason =
        fmt::format("{} of {} workers gave what they had after {:.1f} ms", view.finished,
                    view.with_units, Seconds(*cut_at_ - view.started) * 1e3);
  }

  RoundId round_{~0ull};
  Time started_;
  std::optional<Time> cut_at_;
  Duration patience_{};
};

}  // namespace

std::unique_ptr<ClosingRule> MakePartial(const ArrivalOptions& options) {
  return std::make_unique<Partial>(options);
}

}  // namespace lockstep::policies
