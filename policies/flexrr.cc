#include "policies/flexrr.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "policies/outlook.h"

namespace lockstep::policies {
namespace {

// Reports are looked at when the round is a 64th older than at the last look; without reports it is
// looked at when it is a 16th older.
constexpr Duration kShortestLook = std::chrono::microseconds(100);
constexpr Duration kShortestWait = std::chrono::milliseconds(2);
constexpr int kLooks = 64;
constexpr int kWaits = 16;

// Nobody is stuck within so many of its usual unit times, or such a time.
constexpr int kStuckUnits = 3;
constexpr Duration kShortestStuck = std::chrono::milliseconds(20);

// One round's look at one worker.
struct Sight {
  Duration unit_time{};
  Time end;           // expected
  double progressed;  // share of what it holds
  bool can_help = false;
};

class Flexrr final : public WorkRule {
 public:
  Flexrr(const FlexrrOptions& options, std::unique_ptr<WorkRule> shares)
      : options_(options), shares_(std::move(shares)) {}

  std::string_view name() const override { return "flexrr"; }

  std::vector<std::uint32_t> Share(std::span<const WorkerView> members,
                                   std::uint32_t units) override {
    return shares_->Share(members, units);
  }

  WorkVerdict Judge(const RoundView& view) override {
    WorkVerdict verdict;
    if (view.with_units < 2 || view.round != round_ || view.started != started_) {
      BeginRound(view);
      if (view.with_units < 2) return verdict;
    }
    // A look costs a pass over all workers, so it is taken when time has gone by, when a worker has
    // become free, or when one has answered.
    const bool news = view.finished > finished_ || view.pending_revokes < pending_revokes_;
    finished_ = view.finished;
    pending_revokes_ = view.pending_revokes;
    const Duration age = view.now - view.started;
    verdict.look_again = view.now + std::max(age / kWaits, kShortestWait);
    if (!news && view.now < next_look_) return verdict;
    next_look_ = view.now + std::max(age / kLooks, kShortestLook);
    const Duration usual = MedianUnitTime(view);
    if (usual == Duration{}) return verdict;
    Look(view, usual);
    HandOver(view, &verdict);
    if (verdict.moves.empty()) FenceStuck(view, usual, &verdict);
    return verdict;
  }

  void OnCommitted(const RoundView& view) override { shares_->OnCommitted(view); }

 private:
  void BeginRound(const RoundView& view) {
    round_ = view.round;
    started_ = view.started;
    finished_ = view.finished;
    pending_revokes_ = view.pending_revokes;
    next_look_ = view.now;
    next_hand_over_.clear();
  }

  void Look(const RoundView& view, Duration usual) {
    sights_.clear();
    // What a second part costs its giver: its way to the owners, once more.
    delivery_ = Duration{};
    std::uint32_t delivered = 0;
    for (const WorkerView& worker : view.workers) {
      Sight sight;
      sight.unit_time = UnitTimeOf(worker, usual);
      sight.end = ExpectedEnd(worker, view.now, sight.unit_time);
      sight.end = std::max(sight.end, view.now);
      sight.progressed = Progressed(worker, view.now, sight.unit_time);
      sight.can_help = worker.takes_units && !worker.fenced && !worker.revoking;
      sights_.push_back(sight);
      for (const PartView& part : worker.parts) {
        if (!part.delivered_at) continue;
        delivery_ += *part.delivered_at - part.ready_at;
        ++delivered;
      }
    }
    if (delivered > 0) delivery_ /= delivered;
  }

  // The latest first; each gets rid of as much as it makes the round shorter, within its next
  // hand-over.
  void HandOver(const RoundView& view, WorkVerdict* verdict) {
    std::vector<std::size_t> order(view.workers.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::erase_if(order, [&](std::size_t i) {
      const WorkerView& worker = view.workers[i];
      return worker.fenced || worker.revoking || Movable(worker, view.now, i) == 0;
    });
    std::stable_sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) {
      return sights_[a].end > sights_[b].end;
    });
    for (const std::size_t helpee : order) HandOverFrom(helpee, view, verdict);
  }

  void HandOverFrom(std::size_t helpee, const RoundView& view, WorkVerdict* verdict) {
    const WorkerView& from = view.workers[helpee];
    Sight& slow = sights_[helpee];
    if (!IsStraggler(helpee, view)) return;
    std::uint32_t& size = NextHandOver(from);
    const std::uint32_t most = std::min(size, Movable(from, view.now, helpee));
    std::uint32_t moved = 0;
    for (; moved < most; ++moved) {
      const std::optional<std::size_t> helper = EarliestHelper(helpee, view);
      if (!helper) break;
      Sight& quick = sights_[*helper];
      // Half a unit more: among equals the last unit would go to and fro.
      const Duration price = quick.unit_time * 3 / 2 + Overhead(view.workers[*helper]);
      if (quick.end + price >= slow.end) break;
      quick.end += quick.unit_time;
      slow.end -= slow.unit_time;
      const WorkerId to = view.workers[*helper].member.worker;
      const auto same = std::find_if(
          verdict->moves.begin(), verdict->moves.end(),
          [&](const MoveUnits& m) { return m.from == from.member.worker && m.to == to; });
      if (same != verdict->moves.end()) {
        ++same->units;
      } else {
        verdict->moves.push_back({from.member.worker, to, 1});
      }
    }
    if (moved == 0) return;
    slow.can_help = false;
    verdict->reason +=
        fmt::format("{}worker {} lags ({} of {} units done): {} of them go to others",
                    verdict->reason.empty() ? "" : "; ", from.member.worker, from.units_done,
                    from.units_given, moved);
    size = std::min(size * 2, from.units_given);
  }

  // All but what is begun, and of a worker with nothing new for long also what its report does not
  // say to be begun: it may still be in a unit of an earlier round. It answers what is true.
  std::uint32_t Movable(const WorkerView& worker, Time now, std::size_t i) const {
    const bool overdue = now - worker.progressed_at > 2 * sights_[i].unit_time;
    return worker.units_given -
           (overdue ? std::max(worker.units_taken, worker.units_done) : Begun(worker));
  }

  // Who was handed over from in this round; who is the trigger behind a helper; who has units
  // waiting while a helper has nothing left.
  bool IsStraggler(std::size_t helpee, const RoundView& view) const {
    const auto known = next_hand_over_.size() > view.workers[helpee].member.worker.value
                           ? next_hand_over_[view.workers[helpee].member.worker.value]
                           : 0;
    if (known > 0) return true;
    const auto [first, last] = Group(helpee, view);
    for (std::size_t i = first; i < last; ++i) {
      if (i == helpee || !sights_[i].can_help) continue;
      if (Computed(view.workers[i])) return true;
      if (sights_[i].progressed - sights_[helpee].progressed > options_.trigger) return true;
    }
    return false;
  }

  std::optional<std::size_t> EarliestHelper(std::size_t helpee, const RoundView& view) const {
    std::optional<std::size_t> best;
    const auto [first, last] = Group(helpee, view);
    for (std::size_t i = first; i < last; ++i) {
      if (i == helpee || !sights_[i].can_help) continue;
      if (!best ||
          sights_[i].end + sights_[i].unit_time < sights_[*best].end + sights_[*best].unit_time) {
        best = i;
      }
    }
    return best;
  }

  // A helper that is sealing what it has needs a second part.
  Duration Overhead(const WorkerView& helper) const {
    return Begun(helper) >= helper.units_given ? delivery_ : Duration{};
  }

  std::uint32_t& NextHandOver(const WorkerView& worker) {
    const std::uint32_t slot = worker.member.worker.value;
    if (next_hand_over_.size() <= slot) next_hand_over_.resize(slot + 1, 0);
    std::uint32_t& size = next_hand_over_[slot];
    if (size == 0) {
      size = std::max(1u, static_cast<std::uint32_t>(options_.first * worker.units_planned));
    }
    return size;
  }

  // Neighbours by worker id.
  std::pair<std::size_t, std::size_t> Group(std::size_t worker, const RoundView& view) const {
    const std::size_t count = view.workers.size();
    if (options_.group_size == 0 || options_.group_size >= count) return {0, count};
    const std::size_t first = worker / options_.group_size * options_.group_size;
    return {first, std::min<std::size_t>(first + options_.group_size, count)};
  }

  // A unit that is begun cannot be moved. When everybody else is done and one worker is stuck in a
  // unit (or in delivering), waiting goes on for as long as computing its units again would take,
  // and then they are: never more than twice the time of the better choice.
  void FenceStuck(const RoundView& view, Duration usual, WorkVerdict* verdict) {
    std::uint32_t free = 0;
    std::uint32_t fenced = 0;
    std::vector<std::size_t> late;
    for (std::size_t i = 0; i < view.workers.size(); ++i) {
      const WorkerView& worker = view.workers[i];
      fenced += worker.fenced ? 1 : 0;
      if (worker.fenced || worker.units_given == 0) continue;
      if (worker.finished_at) {
        free += sights_[i].can_help ? 1 : 0;
      } else {
        late.push_back(i);
      }
    }
    // Where many are late it is not them; and who computes again what a fence took must not be
    // next.
    const std::size_t most = std::max<std::size_t>(view.workers.size() / 4, 1);
    if (free == 0 || late.size() + fenced > most) return;
    for (const std::size_t i : late) {
      const WorkerView& worker = view.workers[i];
      const Duration again = usual * ((worker.units_given + free - 1) / free) + delivery_;
      const Duration due =
          std::max(Computed(worker) ? 4 * delivery_ + usual : kStuckUnits * sights_[i].unit_time,
                   kShortestStuck);
      const Time from = worker.parts.empty()
                            ? worker.progressed_at
                            : std::max(worker.progressed_at, worker.parts.back().ready_at);
      const Time until = from + due + again;
      if (view.now < until) {
        verdict->look_again = std::min(verdict->look_again, until);
        continue;
      }
      verdict->fence.push_back(worker.member.worker);
      verdict->reason += fmt::format(
          "{}worker {} is stuck ({} of {} units done, nothing new for {:.0f} ms) and all others "
          "are done",
          verdict->reason.empty() ? "" : "; ", worker.member.worker, worker.units_done,
          worker.units_given, Seconds(view.now - from) * 1e3);
    }
  }

  const FlexrrOptions options_;
  const std::unique_ptr<WorkRule> shares_;
  RoundId round_{~0ull};
  Time started_;
  std::uint32_t finished_ = 0;
  std::uint32_t pending_revokes_ = 0;
  Time next_look_;
  std::vector<std::uint32_t> next_hand_over_;  // by slot; 0: not in this round yet
  std::vector<Sight> sights_;                  // parallel to the view's workers
  Duration delivery_{};
};

}  // namespace

std::unique_ptr<WorkRule> MakeFlexrr(const FlexrrOptions& options,
                                     std::unique_ptr<WorkRule> shares) {
  return std::make_unique<Flexrr>(options, std::move(shares));
}

}  // namespace lockstep::policies
