#include "worker/runtime/run_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lockstep::worker {

RunWatch::~RunWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void RunWatch::Begin(RoundId round, std::span<const Unit> units) {
  LOCKSTEP_CHECK(!units.empty(), "a run without units in round {}", round);
  const std::lock_guard lock(mutex_);
  run_ = Run{round, MonotonicNow(), static_cast<std::uint32_t>(units.size()), units.front().range};
}

void RunWatch::LeaveOut(Duration spent) {
  const std::lock_guard lock(mutex_);
  if (run_) run_->began += spent;
}

void RunWatch::End() {
  {
    const std::lock_guard lock(mutex_);
    if (!run_) return;
    longest_ = std::max(longest_, MonotonicNow() - run_->began);
    run_.reset();
  }
  wake_.notify_all();
}

msg::RunInHand RunWatch::InHand() const {
  const std::lock_guard lock(mutex_);
  if (!run_) return {};
  return {std::max<std::int64_t>((MonotonicNow() - run_->began).count(), 0), run_->units};
}

void RunWatch::PutOut(std::string reason, Duration patience, OnHung on_hung) {
  const std::lock_guard lock(mutex_);
  if (!run_ || !on_hung || stopped_ || thread_.joinable()) return;
  thread_ =
      std::thread([this, reason = std::move(reason), patience = std::max(patience, 2 * longest_),
                   on_hung = std::move(on_hung)] { Watch(reason, patience, on_hung); });
}

void RunWatch::Watch(const std::string& reason, Duration patience, const OnHung& on_hung) {
  std::string line;
  {
    std::unique_lock lock(mutex_);
    if (wake_.wait_for(lock, patience, [this] { return stopped_ || !run_; })) return;
    line = fmt::format(
        "this worker is out of the job ({}), and its program has computed a run of {} unit{} for "
        "{:.1f} s (round {}, from position {} of the epoch on). It hangs, or does something else "
        "without job.away (in C: lockstep_away). Its process ends here",
        reason, run_->units, run_->units == 1 ? "" : "s", Seconds(MonotonicNow() - run_->began),
        run_->round, run_->first.from);
  }
  on_hung(line);
}

}  // namespace lockstep::worker
