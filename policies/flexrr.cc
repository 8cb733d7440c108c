#include "policies/flexrr.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "policies/outlook.h"
#include "policies/standings.h"

namespace lockstep::policies {
namespace {

// Reports are looked at when the round is a 64th older than at the last look; without reports it is
// looked at when it is a 16th older.
constexpr Duration kShortestLook = std::chrono::microseconds(100);
constexpr Duration kShortestWait = std::chrono::milliseconds(2);
constexpr int kLooks = 64;
constexpr int kLooksTogether = 256;  // of news that came meanwhile
constexpr int kWaits = 16;
// News is looked at as soon as it comes until the passes of a round have seen so many workers, and
// so many times in any case.
constexpr std::size_t kStepsAtOnce = 16384;
constexpr std::size_t kFewestAtOnce = 8;

// No worker is stuck in a unit within so many of its usual unit times, nor within what units take
// now and then, nor within such a time.
constexpr double kStuckUnits = 3;
constexpr double kBeyondLongest = 1.25;  // of recent units
constexpr double kMostStuckUnits = 16;   // all may have been stopped together
constexpr int kFarSlower = 4;            // than the median worker
constexpr int kHopelessShare = 4;        // of the round so far: that long after all others are done
constexpr Duration kShortestStuck = std::chrono::milliseconds(20);
constexpr std::size_t kFreePasses = 3;     // of units that it was handed and has not begun
constexpr std::size_t kMostDoublings = 5;  // of the patience with those that are late

constexpr int kDeliveryMemory = 4;  // rounds

// A straggler of a look, in a heap: the latest end on top, at a tie the first by id.
struct Late {
  Time end;
  std::size_t worker;
  bool operator<(const Late& other) const {
    return end != other.end ? end < other.end : worker > other.worker;
  }
};

// Units that a helper gets when their giver has answered.
struct Promise {
  WorkerId from;
  WorkerId to;
  std::uint32_t units = 0;
  double cost = 0;          // theirs, in usual units
  std::size_t from_at = 0;  // where they were in the view when it was looked at last
  std::size_t to_at = 0;
};

// Units that a worker got by a hand-over and has not reported as begun. It may be about to begin
// them, and two idle workers with slow reports would pass a unit to and fro for ever. So from the
// third time on that it passes such units on it keeps the next ones, each time for twice as long.
struct Received {
  bool any = false;
  std::uint32_t done = 0;  // its units_done then
  std::size_t passed = 0;  // times that it passed some on since
  Time last;
};

class Flexrr final : public WorkRule {
 public:
  Flexrr(const FlexrrOptions& options, std::unique_ptr<WorkRule> shares, ExclusionRule* exclusion)
      : options_(options),
        shares_(std::move(shares)),
        exclusion_(exclusion),
        standings_(options.group_size) {}

  std::string_view name() const override { return "flexrr"; }

  std::vector<std::uint32_t> Share(std::span<const WorkerView> members,
                                   std::uint32_t units) override {
    return shares_->Share(members, units);
  }

  WorkVerdict Judge(const RoundView& view) override {
    WorkVerdict verdict;
    const bool alone = view.with_units + view.idle < 2;
    if (alone || view.round != round_ || view.started != started_) {
      BeginRound(view);
      if (alone) return verdict;
    }
    // A look costs a pass over numbers of all workers, so it is taken when time has gone by, when a
    // worker has become free, or when one has answered. Where very many do, all the news of a 256th
    // of the round so far is looked at together, so that the passes of a round do not grow with it.
    news_ = news_ || view.finished > finished_ || view.pending_revokes < pending_revokes_;
    finished_ = view.finished;
    pending_revokes_ = view.pending_revokes;
    const Duration age = view.now - view.started;
    verdict.look_again = view.now + std::max(age / kWaits, kShortestWait);
    if (view.now < next_look_) {
      if (!news_) return verdict;
      if (looks_at_once_ > 0) {
        --looks_at_once_;
      } else if (view.now < news_look_) {
        verdict.look_again = news_look_;
        return verdict;
      }
    }
    news_ = false;
    news_look_ = view.now + std::max(age / kLooksTogether, kShortestLook);
    next_look_ = view.now + std::max(age / kLooks, kShortestLook);
    if (!standings_.Look(view)) return verdict;
    AddPromises(view);
    if (exclusion_ != nullptr && exclusion_->IsDue(view)) {
      exclusion_->Decide(view, standings_.All(), Delivery());
    }
    if (standings_.any_movable()) HandOver(view, &verdict);
    if (verdict.moves.empty()) FenceStuck(view, &verdict);
    return verdict;
  }

  void OnCommitted(const RoundView& view) override {
    shares_->OnCommitted(view);
    if (const auto delivery = MeanDelivery(view)) {
      usual_delivery_ += (*delivery - usual_delivery_) / (knows_delivery_ ? kDeliveryMemory : 1);
      knows_delivery_ = true;
    }
  }

 private:
  void BeginRound(const RoundView& view) {
    round_ = view.round;
    started_ = view.started;
    finished_ = view.finished;
    pending_revokes_ = view.pending_revokes;
    next_look_ = view.now;
    looks_at_once_ =
        std::max(kStepsAtOnce / std::max<std::size_t>(view.workers.size(), 1), kFewestAtOnce);
    news_ = false;
    standings_.Forget();
    next_hand_over_.clear();
    promises_.clear();
    received_.clear();
    stuck_units_.reset();
  }

  // Without promises all workers that lag would choose the same helper until one of them has
  // answered. That helper would then be the latest, and give to all again.
  void AddPromises(const RoundView& view) {
    const auto is_at = [&](std::size_t place, WorkerId worker) {
      return place < view.workers.size() && view.workers[place].member.worker == worker;
    };
    // Places change only where workers come and go.
    const auto find = [&](WorkerId worker, std::size_t* place) {
      if (is_at(*place, worker)) return true;
      const auto found = std::ranges::lower_bound(
          view.workers, worker, {}, [](const WorkerView& other) { return other.member.worker; });
      *place = static_cast<std::size_t>(found - view.workers.begin());
      return is_at(*place, worker);
    };
    std::erase_if(promises_, [&](Promise& promise) {
      if (!find(promise.from, &promise.from_at)) return true;
      const WorkerView& from = view.workers[promise.from_at];
      return !from.revoking || from.fenced;
    });
    for (Promise& promise : promises_) {
      if (!find(promise.to, &promise.to_at)) continue;
      standings_.Promise(promise.to_at, promise.units, promise.cost);
    }
  }

  // Stragglers are who was one before in this round, who is the trigger behind a helper, and who
  // has units waiting while a helper has nothing left. The latest first; each gets rid of as much
  // as it makes the round shorter, within its next hand-over.
  void HandOver(const RoundView& view, WorkVerdict* verdict) {
    moves_at_.assign(verdict->moves.size(), {});
    late_.clear();
    for (std::size_t group = 0; group < standings_.groups(); ++group) {
      if (!standings_.IsQuiet(group, options_.trigger)) FindLate(view, group);
    }
    std::make_heap(late_.begin(), late_.end());
    Time helped_end{};  // of those that get units
    for (auto last = late_.end(); last != late_.begin(); --last) {
      if (standings_.NobodyHelps(std::max(late_.front().end, helped_end))) return;
      std::pop_heap(late_.begin(), last);
      HandOverFrom((last - 1)->worker, view, verdict, &helped_end);
    }
  }

  void FindLate(const RoundView& view, std::size_t group) {
    const auto [first, last] = standings_.MembersOf(group);
    for (std::size_t i = first; i < last; ++i) {
      if (standings_.movable(i) == 0 || IsExcluded(i) || MayBeginSoon(view, i)) continue;
      std::uint32_t& next = NextHandOver(i);
      if (next == 0 && !standings_.IsBehind(i, options_.trigger)) continue;
      if (next == 0) {
        const auto units =
            static_cast<std::uint32_t>(options_.first * view.workers[i].units_planned);
        next = std::max(1u, units);
      }
      standings_.Mark(i);
      const Time end = standings_.end(i);
      if (standings_.Soonest(i) < end) late_.push_back({end, i});
    }
  }

  void HandOverFrom(std::size_t helpee, const RoundView& view, WorkVerdict* verdict,
                    Time* helped_end) {
    const WorkerView& from = view.workers[helpee];
    std::uint32_t& size = NextHandOver(helpee);
    const std::uint32_t most = std::min(size, standings_.movable(helpee));
    const std::size_t first_move = verdict->moves.size();
    std::uint32_t moved = 0;
    for (; moved < most; ++moved) {
      const std::optional<std::size_t> helper = standings_.Earliest(helpee);
      if (!helper) break;
      const WorkerEstimate& quick = standings_.At(*helper);
      const std::uint32_t last = from.units_given - 1 - moved;
      const double cost = CostOf(from, last, last + 1);
      // Half a unit more: among equals the last unit would go to and fro. A helper that has nothing
      // begins a unit at once that waits behind others here, so that nobody takes it back.
      const Duration step = quick.Steps(1, cost);
      const bool at_once = quick.idle && last >= Begun(from);
      const Time done = quick.end + quick.start_cost + step + (at_once ? Duration{} : step / 2);
      const Time slow_end = standings_.end(helpee);
      if (done >= slow_end || done + Overhead(view, *helper) >= slow_end) break;
      standings_.Give(helpee, *helper, cost);
      *helped_end = std::max(*helped_end, standings_.end(*helper));
      const WorkerId to = view.workers[*helper].member.worker;
      const auto same =
          std::find_if(verdict->moves.begin() + static_cast<std::ptrdiff_t>(first_move),
                       verdict->moves.end(), [&](const MoveUnits& m) { return m.to == to; });
      if (same != verdict->moves.end()) {
        ++same->units;
        moves_at_[static_cast<std::size_t>(same - verdict->moves.begin())].cost += cost;
      } else {
        verdict->moves.push_back({from.member.worker, to, 1});
        moves_at_.push_back({*helper, cost});
      }
    }
    if (moved == 0) return;
    for (std::size_t i = first_move; i < verdict->moves.size(); ++i) {
      const MoveUnits& move = verdict->moves[i];
      const std::size_t to_at = moves_at_[i].to;
      promises_.push_back({move.from, move.to, move.units, moves_at_[i].cost, helpee, to_at});
      const WorkerView& to = view.workers[to_at];
      Received& received = ReceivedBy(move.to);
      if (received.done != to.units_done) received = {};
      received.any = true;
      received.done = to.units_done;
    }
    if (Received& received = ReceivedBy(from.member.worker); received.any) {
      ++received.passed;
      received.last = view.now;
    }
    standings_.EndHelp(helpee);
    verdict->reason +=
        fmt::format("{}worker {} lags ({} of {} units done): {} of them go to others",
                    verdict->reason.empty() ? "" : "; ", from.member.worker, from.units_done,
                    from.units_given, moved);
    size = std::min(size * 2, from.units_given);
  }

  Received& ReceivedBy(WorkerId worker) {
    if (received_.size() <= worker.value) received_.resize(worker.value + 1);
    return received_[worker.value];
  }

  bool MayBeginSoon(const RoundView& view, std::size_t i) {
    Received& received = ReceivedBy(standings_.worker(i));
    if (!received.any) return false;
    if (received.done != view.workers[i].units_done) received = {};
    if (received.passed < kFreePasses) return false;
    const std::size_t doublings = std::min(received.passed - kFreePasses, kMostDoublings);
    return view.now < received.last + kShortestStuck * (1 << doublings);
  }

  // The rest of the run that it is in, by its usual unit times; below zero where it is overdue.
  static Duration ExpectedRest(const WorkerView& worker, Time now, Duration unit_time) {
    const Duration run =
        RunTime(worker, worker.units_done, worker.units_done + InHand(worker), unit_time);
    return run - (now - worker.progressed_at);
  }

  bool IsExcluded(std::size_t i) const {
    return exclusion_ != nullptr && exclusion_->IsOut(standings_.worker(i));
  }

  // A helper that is sealing what it has needs a second part.
  Duration Overhead(const RoundView& view, std::size_t helper) {
    const WorkerView& worker = view.workers[helper];
    return Begun(worker) >= worker.units_given ? Delivery() : Duration{};
  }

  // The giver's cost of a second part: one more way to the owners, as the mean of those known.
  Duration Delivery() const { return standings_.MeanDelivery().value_or(usual_delivery_); }

  static std::optional<Duration> MeanDelivery(const RoundView& view) {
    Duration sum{};
    std::uint32_t delivered = 0;
    for (const WorkerView& worker : view.workers) {
      for (const PartView& part : worker.parts) {
        if (!part.delivered_at) continue;
        sum += *part.delivered_at - part.ready_at;
        ++delivered;
      }
    }
    return delivered > 0 ? std::optional(sum / delivered) : std::nullopt;
  }

  // Of a straggler of this round; else 0.
  std::uint32_t& NextHandOver(std::size_t i) {
    const std::uint32_t slot = standings_.worker(i).value;
    if (next_hand_over_.size() <= slot) next_hand_over_.resize(slot + 1, 0);
    return next_hand_over_[slot];
  }

  // A unit that is begun cannot be moved. When all others are done and one worker is stuck in a
  // unit (or in delivery), the round waits for as long as computing its units again would take.
  // Then they are computed again: never more than twice the time of the better choice. A worker may
  // be known to need much longer than that, or be far slower than others and late even so. It gets
  // a little time to show progress: else a wrong time, once learned, would have it fenced for ever.
  void FenceStuck(const RoundView& view, WorkVerdict* verdict) {
    // When most are late the cause is elsewhere; and a worker that computes again what a fence took
    // must not be next. So where more than a few are late or fenced each one more doubles the
    // patience. An exact round closes over all of its units: there it goes on as long as somebody
    // is free.
    const std::size_t few = std::max<std::size_t>(view.workers.size() / 4, 1);
    const std::size_t most = std::max<std::size_t>(few, view.with_units / 2);
    if (!view.exact && view.with_units - view.finished > most) return;
    if (exclusion_ != nullptr && exclusion_->AnyOut()) {
      // The round ends without it.
      for (std::size_t i = 0; i < standings_.size(); ++i) {
        if (IsExcluded(i)) return;
      }
    }
    const Standings::Finish& finish = standings_.LookAtFinish(view.started);
    const std::uint32_t free = view.idle + finish.free;
    const std::uint32_t done = finish.done;
    const std::size_t fenced = finish.fenced;
    const Time delivered = finish.delivered;  // when the owners had a part last
    const std::vector<std::size_t>& late = finish.late;
    // Where all others have sealed both of their parts nobody can take over: a later round has the
    // samples.
    if (late.empty() || (free == 0 && (view.exact || done == 0))) return;
    const bool many = late.size() + fenced > few;
    const Duration usual = standings_.MedianOfUnitTimes(view);
    if (!view.exact && late.size() > few && !AllAreDue(view, late, usual, verdict)) return;
    const std::size_t excess =
        (many && !view.exact ? late.size() + fenced - few : 0) + (free == 0 ? 1 : 0);
    const int patience = 1 << std::min<std::size_t>(excess, kMostDoublings);
    const std::uint32_t takers = std::max(free, 1u);
    const Duration delivery = Delivery();
    std::uint32_t units_late = 0;
    for (const std::size_t i : late) units_late += Worth(view.workers[i]);
    for (const std::size_t i : late) {
      const WorkerView& worker = view.workers[i];
      const std::uint32_t units = many ? units_late : Worth(worker);
      const Duration again = RunTime(worker, (units + takers - 1) / takers, usual) + delivery;
      const Time from = LastHeardOf(worker);
      // It may be an owner that is late with them all.
      if (many && Computed(worker) && delivered <= from) continue;
      const Duration rest = ExpectedRest(worker, view.now, standings_.unit_time(i));
      const bool overdue = rest < Duration{} && standings_.unit_time(i) > kFarSlower * usual;
      const bool hopeless =
          !Computed(worker) && (overdue || rest > std::max(2 * again, kShortestStuck));
      Time until = from + (DueIn(view, i, usual) + again) * patience;
      if (hopeless) {
        const Duration a_little = std::max((delivered - view.started) / kHopelessShare, again);
        until = std::min(until, delivered + a_little * patience);
      }
      if (view.now < until) {
        verdict->look_again = std::min(verdict->look_again, until);
        continue;
      }
      verdict->fence.push_back(worker.member.worker);
      verdict->reason += fmt::format(
          "{}worker {} is stuck ({} of {} units done, nothing new for {:.0f} ms) and {}{}",
          verdict->reason.empty() ? "" : "; ", worker.member.worker, worker.units_done,
          worker.units_given, Seconds(view.now - from) * 1e3,
          late.size() == 1 ? "all others are done" : "most others are done",
          free == 0 ? "; nobody has room for its units now, so a later round computes them" : "");
    }
  }

  // In usual units.
  static std::uint32_t Worth(const WorkerView& worker) {
    if (worker.cost_before.empty()) return worker.units_given;
    return static_cast<std::uint32_t>(std::ceil(CostOf(worker, 0, worker.units_given)));
  }

  // The time from its last news until a late worker counts as stuck.
  Duration DueIn(const RoundView& view, std::size_t i, Duration usual) {
    const WorkerView& worker = view.workers[i];
    return std::max(
        Computed(worker)
            ? 4 * Delivery() + usual
            : RunTime(worker, worker.units_done, worker.units_done + InHand(worker),
                      standings_.unit_time(i)) +
                  FromSeconds((StuckUnits(view) - 1) * Seconds(standings_.unit_time(i))),
        kShortestStuck);
  }

  // Where units take different times because of their data, each worker has long ones, which take
  // as long again elsewhere. If only some do, it is no matter of the data.
  double StuckUnits(const RoundView& view) {
    if (stuck_units_) return *stuck_units_;
    std::vector<double> longest;
    for (const WorkerView& worker : view.workers) {
      if (worker.unit_time_mean == Duration{}) continue;
      longest.push_back(Seconds(worker.unit_time_longest) / Seconds(worker.unit_time_mean));
    }
    stuck_units_ = kStuckUnits;
    if (longest.size() > 1) {
      const auto middle = longest.begin() + (std::ssize(longest) - 1) / 2;
      std::ranges::nth_element(longest, middle);
      stuck_units_ = std::clamp(kBeyondLongest * *middle, kStuckUnits, kMostStuckUnits);
    }
    return *stuck_units_;
  }

  static Time LastHeardOf(const WorkerView& worker) {
    return worker.parts.empty() ? worker.progressed_at
                                : std::max(worker.progressed_at, worker.parts.back().ready_at);
  }

  // None of them may still be computing as usual; far slower ones are not waited for.
  bool AllAreDue(const RoundView& view, const std::vector<std::size_t>& late, Duration usual,
                 WorkVerdict* verdict) {
    for (const std::size_t i : late) {
      if (standings_.unit_time(i) > kFarSlower * usual) continue;
      const Time due = LastHeardOf(view.workers[i]) + DueIn(view, i, usual);
      if (view.now >= due) continue;
      verdict->look_again = std::min(verdict->look_again, due);
      return false;
    }
    return true;
  }

  const FlexrrOptions options_;
  const std::unique_ptr<WorkRule> shares_;
  ExclusionRule* const exclusion_;
  RoundId round_{~0ull};
  Time started_;
  std::uint32_t finished_ = 0;
  std::uint32_t pending_revokes_ = 0;
  Time next_look_;
  std::size_t looks_at_once_ = 0;              // that are left
  bool news_ = false;                          // since the last look
  Time news_look_;                             // when it is looked at, if not at once
  std::vector<std::uint32_t> next_hand_over_;  // by slot; 0: no straggler so far
  std::vector<Promise> promises_;              // of givers that have not answered
  std::vector<Received> received_;             // by slot
  struct MoveAt {
    std::size_t to = 0;  // in the view
    double cost = 0;     // in usual units
  };
  Standings standings_;
  std::vector<Late> late_;
  std::vector<MoveAt> moves_at_;       // of this look's moves
  Duration usual_delivery_{};          // of earlier rounds
  std::optional<double> stuck_units_;  // of this round
  bool knows_delivery_ = false;
};

}  // namespace

std::unique_ptr<WorkRule> MakeFlexrr(const FlexrrOptions& options, std::unique_ptr<WorkRule> shares,
                                     ExclusionRule* exclusion) {
  return std::make_unique<Flexrr>(options, std::move(shares), exclusion);
}

}  // namespace lockstep::policies
