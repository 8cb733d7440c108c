#include "worker/runtime/compute_queue.h"

#include <iterator>
#include <utility>

namespace lockstep::worker {

void ComputeQueue::StartWork(UnitQueue* queue, const action::StartWork& work) {
  std::lock_guard lock(mutex_);
  queue_ = queue;
  work_ = work;
  look_ = true;
  wake_.notify_one();
}

void ComputeQueue::WakeCompute() {
  std::lock_guard lock(mutex_);
  look_ = true;
  wake_.notify_one();
}

void ComputeQueue::VoidWork() {
  cancelled_.store(true, std::memory_order_relaxed);
  std::lock_guard lock(mutex_);
  if (wake_cancelled_) wake_cancelled_();
}

void ComputeQueue::OnCancelled(std::function<void()> wake) {
  std::lock_guard lock(mutex_);
  wake_cancelled_ = std::move(wake);
}

void ComputeQueue::Evaluate(const action::EvaluateChunk& chunk) {
  std::lock_guard lock(mutex_);
  chunk_ = chunk;
  wake_.notify_one();
}

void ComputeQueue::Update(const ProgramUpdate& update) {
  std::lock_guard lock(mutex_);
  update_ = update;
  wake_.notify_one();
}

void ComputeQueue::EndEpoch(const action::EpochEnd& end) {
  std::lock_guard lock(mutex_);
  epoch_end_ = end;
  wake_.notify_one();
}

std::shared_ptr<const CommittedCounts> ComputeQueue::CountsBefore(RoundId round) const {
  for (auto at = last_counts_.rbegin(); at != last_counts_.rend(); ++at) {
    if ((*at)->round < round) return *at;
  }
  return counts_;
}

std::shared_ptr<const CommittedCounts> ComputeQueue::CountsOf(RoundId round) const {
  for (auto at = last_counts_.rbegin(); at != last_counts_.rend(); ++at) {
    if ((*at)->round == round) return *at;
  }
  return counts_;
}

// Told again with what a worker that was away is to take, perhaps behind newer ones; a later
// attempt is over other parts.
void ComputeQueue::Committed(const msg::Commit& commit) {
  std::lock_guard lock(mutex_);
  const std::pair what(commit.round, commit.attempt);
  auto behind = last_counts_.end();
  while (behind != last_counts_.begin()) {
    const CommittedCounts& before = **std::prev(behind);
    if (std::pair(before.round, before.attempt) == what) return;
    if (std::pair(before.round, before.attempt) < what) break;
    --behind;
  }
  last_counts_.insert(behind, std::make_shared<CommittedCounts>(CommittedCounts{
                                  commit.round, commit.attempt, commit.epoch, commit.samples,
                                  commit.loss, commit.metrics, commit.policy, commit.slow}));
  counts_ = last_counts_.back();
  if (last_counts_.size() > kKeptCounts) last_counts_.pop_front();
}

void ComputeQueue::Orphan(action::Orphaned orphaned) {
  std::lock_guard lock(mutex_);
  orphaned_ = std::move(orphaned);
  cancelled_.store(true, std::memory_order_relaxed);
  wake_.notify_one();
  if (wake_cancelled_) wake_cancelled_();
}

void ComputeQueue::Detach(action::Detached detached) {
  std::lock_guard lock(mutex_);
  detached_ = std::move(detached);
  wake_.notify_one();
}

void ComputeQueue::ExpectDetached() {
  std::lock_guard lock(mutex_);
  expects_detached_ = true;
}

void ComputeQueue::Reset() {
  std::lock_guard lock(mutex_);
  queue_ = nullptr;
  work_ = {};
  cancelled_.store(ended_, std::memory_order_relaxed);
  look_ = false;
  chunk_.reset();
  update_.reset();
  epoch_end_.reset();
  orphaned_.reset();
  expects_detached_ = false;
  detached_.reset();
  counts_.reset();
  last_counts_.clear();
}

void ComputeQueue::End(Ending ending) {
  std::lock_guard lock(mutex_);
  if (ended_) return;
  ended_ = true;
  ending_ = std::move(ending);
  cancelled_.store(true, std::memory_order_relaxed);
  wake_.notify_one();
  if (wake_cancelled_) wake_cancelled_();
}

ComputeQueue::Pick ComputeQueue::Next(Duration limit) {
  const Time now = limit < kNever.time_since_epoch() ? MonotonicNow() : Time();
  const Time until = limit < kNever - now ? now + limit : kNever;
  std::unique_lock lock(mutex_);
  for (;;) {
    Pick pick;
    if (ended_) {
      pick.ending = ending_;
      pick.counts = counts_;
      return pick;
    }
    if (update_) {
      pick.kind = Pick::Kind::kUpdate;
      pick.update = *std::exchange(update_, std::nullopt);
      pick.counts = CountsOf(pick.update.round);
      return pick;
    }
    if (epoch_end_) {
      pick.kind = Pick::Kind::kEpochEnd;
      pick.epoch_end = *std::exchange(epoch_end_, std::nullopt);
      pick.counts = CountsBefore(pick.epoch_end.next);
      return pick;
    }
    if (orphaned_ && !expects_detached_) {
      pick.kind = Pick::Kind::kOrphaned;
      pick.orphaned = *orphaned_;
      return pick;
    }
    if (detached_) {
      pick.kind = Pick::Kind::kDetached;
      pick.detached = *detached_;
      return pick;
    }
    if (look_ && !orphaned_) {
      // Before the take: a VoidWork that is meant for the run comes after it.
      cancelled_.store(false, std::memory_order_relaxed);
      pick.take = queue_->TakeNext();
      // The queue can be filled anew before this thread learns where the sums of the new work go.
      if (pick.take.kind != UnitQueue::TakeKind::kNone) {
        wake_.wait(lock, [&] { return ended_ || orphaned_ || work_.work == pick.take.work; });
        if (ended_ || orphaned_) continue;
        pick.work = work_;
        pick.kind =
            pick.take.kind == UnitQueue::TakeKind::kSeal ? Pick::Kind::kSeal : Pick::Kind::kRun;
        pick.units = queue_->UnitsOf(pick.take);
        pick.counts = counts_;
        return pick;
      }
      look_ = false;
    }
    if (chunk_ && !orphaned_) {
      pick.kind = Pick::Kind::kEvaluate;
      pick.chunk = *std::exchange(chunk_, std::nullopt);
      pick.counts = counts_;
      return pick;
    }
    const auto something = [this] {
      if (ended_ || update_ || epoch_end_) return true;
      if (orphaned_) return !expects_detached_ || detached_.has_value();
      return look_ || chunk_.has_value();
    };
    if (until == kNever) {
      wake_.wait(lock, something);
    } else if (!wake_.wait_until(lock,
                                 std::chrono::steady_clock::time_point(until.time_since_epoch()),
                                 something)) {
      pick.kind = Pick::Kind::kNone;
      return pick;
    }
  }
}

}  // namespace lockstep::worker
