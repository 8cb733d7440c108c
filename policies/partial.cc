#include "policies/partial.h"

#include <fmt/format.h>

#include <algorithm>

#include "policies/arrivals.h"
#include "policies/outlook.h"
#include "policies/waiting.h"

namespace lockstep::policies {
namespace {

class Partial final : public ClosingRule {
 public:
  explicit Partial(const PartialOptions& options) : options_(options), arrivals_(options.window) {}

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
    if (deadline_ && !view.exact) JudgeLate(view, &verdict);
    if (!verdict.close && view.explain) verdict.reason = WaitingFor(view);
    return verdict;
  }

  std::uint32_t Spare() const override {
    return options_.workers - std::min(options_.workers, options_.min_contributors);
  }

  bool CanDoWithout(const RoundView& view) override {
    return !view.exact && view.with_units >= std::max(options_.min_contributors, 1u);
  }

  void OnCommitted(const RoundView& view) override {
    if (!view.exact) arrivals_.Add(view, true);
    deadline_ = arrivals_.Deadline(options_.k);
  }

 private:
  static void Close(const RoundView& view, ClosingVerdict* verdict) {
    verdict->close = true;
    verdict->parts = AllDelivered(view);
  }

  // After the cut everybody still has the unit it is in. Who takes more than two of the usual ones
  // and a quarter of the round for it is left out.
  void JudgeLate(const RoundView& view, ClosingVerdict* verdict) {
    const Time until = view.started + *deadline_;
    if (view.now < until) {
      verdict->look_again = until;
      return;
    }
    if (!cut_at_) {
      cut_at_ = view.now;
      patience_ = MedianUnitTime(view) * 2 + *deadline_ / 4;
      verdict->cut = true;
      verdict->reason = fmt::format("the deadline of {:.1f} ms", Seconds(*deadline_) * 1e3);
    }
    const Time end = *cut_at_ + patience_;
    if (view.now < end) {
      verdict->look_again = end;
      return;
    }
    if (view.finished < std::max(options_.min_contributors, 1u)) return;
    Close(view, verdict);
    verdict->reason =
        fmt::format("{} of {} workers gave what they had after {:.1f} ms", view.finished,
                    view.with_units, Seconds(*cut_at_ - view.started) * 1e3);
  }

  const PartialOptions options_;
  Arrivals arrivals_;
  std::optional<Duration> deadline_;
  RoundId round_{~0ull};
  Time started_;
  std::optional<Time> cut_at_;
  Duration patience_{};
};

}  // namespace

std::unique_ptr<ClosingRule> MakePartial(const PartialOptions& options) {
  return std::make_unique<Partial>(options);
}

}  // namespace lockstep::policies
