#include "worker/core/evaluation.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::worker {

namespace {

constexpr std::size_t kMaxOrders = 1u << 16;

}  // namespace

// The snapshot is of the parameters right after the round that the commit names, as everywhere: so
// the chunks of all members are of one state.
void Evaluation::OnApplied(const msg::Commit& commit) {
  if (commit.evaluation == 0) return;
  wanted_ = commit.evaluation;
  TakeSnapshot();
}

void Evaluation::TakeSnapshot() {
  // The chunk under way reads the snapshot before.
  if (!wanted_ || chunk_under_way_) return;
  evaluation_ = *wanted_;
  wanted_.reset();
  partial_.reset();
  std::erase_if(orders_,
                [&](const msg::Evaluate& order) { return order.evaluation < evaluation_; });
  snapshot_op_ = context_.NewOp();
  snapshots_.insert(snapshot_op_);
  context_.Emit(action::TakeSnapshot{snapshot_op_, action::SnapshotKind::kEvaluation});
}

// Orders for an evaluation that is over are not answered: the coordinator has given it up.
bool Evaluation::OnEvaluate(const msg::Evaluate& order) {
  if (order.evaluation < evaluation_) return true;
  orders_.push_back(order);
  return orders_.size() <= kMaxOrders;
}

bool Evaluation::OnOpDone(const event::OpDone& done) { return snapshots_.erase(done.op) == 1; }

void Evaluation::Update(bool idle) {
  TakeSnapshot();
  if (idle) StartChunk();
}

// Small chunks, so that training waits for one of them at most. An order for a later evaluation
// waits for its snapshot.
void Evaluation::StartChunk() {
  if (chunk_under_way_ || snapshots_.contains(snapshot_op_) || wanted_ || orders_.empty()) return;
  const msg::Evaluate& order = orders_.front();
  if (order.evaluation != evaluation_) return;
  if (!partial_) {
    partial_ = msg::EvaluationResult{order.evaluation, {order.range.from, order.range.from}, 0, 0};
  }
  const std::uint64_t from = partial_->range.to;
  const std::uint64_t to =
      std::min<std::uint64_t>(order.range.to, from + context_.config.evaluation_chunk);
  chunk_under_way_ = true;
  context_.Emit(action::EvaluateChunk{order.evaluation, {from, to}});
}

// One result for each order, when its last chunk is done.
void Evaluation::OnChunkEvaluated(const event::ChunkEvaluated& done) {
  LOCKSTEP_CHECK(chunk_under_way_, "evaluated without an order");
  chunk_under_way_ = false;
  LOCKSTEP_CHECK(done.evaluation == evaluation_ && done.range.from == partial_->range.to,
                 "another chunk was evaluated than was asked for");
  partial_->range.to = done.range.to;
  partial_->loss_sum += done.loss_sum;
  partial_->correct += done.correct;
  if (partial_->range.to < orders_.front().range.to) return;
  context_.Tell(*partial_);
  partial_.reset();
  orders_.pop_front();
}

void Evaluation::CheckInvariants() const {
  LOCKSTEP_CHECK(!chunk_under_way_ || !snapshots_.contains(snapshot_op_),
                 "I4: the snapshot changes under the chunk that reads it");
  LOCKSTEP_CHECK(!partial_ || !orders_.empty(), "a result for no order");
  LOCKSTEP_CHECK(orders_.empty() || orders_.front().evaluation >= evaluation_,
                 "an order of evaluation {}, which is over", orders_.front().evaluation);
  // One more ends the job: OnEvaluate says so.
  LOCKSTEP_CHECK(orders_.size() <= kMaxOrders + 1, "I7: {} orders to evaluate", orders_.size());
  LOCKSTEP_CHECK(!chunk_under_way_ || partial_, "a chunk of evaluation {} for no result",
                 evaluation_);
  LOCKSTEP_CHECK(!partial_ || partial_->evaluation == evaluation_,
                 "a result of evaluation {} from the snapshot of {}", partial_->evaluation,
                 evaluation_);
}

}  // namespace lockstep::worker
