#include "worker/core/side_jobs.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::worker {

namespace {

constexpr std::size_t kMaxOrders = 1u << 16;

}  // namespace

void SideJobs::OnApplied(const Commit& commit) {
  if (commit.evaluation != 0) {
    wanted_evaluation_ = commit.evaluation;
    TakeEvaluationSnapshot();
  }
  OnCheckpoint(commit);
}

void SideJobs::OnCheckpoint(const Commit& commit) {
  if (!commit.checkpoint_writer) return;
  const std::uint64_t op = context_.NewOp();
  ops_.insert(op);
  digests_[op] = {commit.round, commit.attempt, {}};
  context_.Emit(action::DigestReplica{op});
  if (commit.checkpoint_writer == context_.config.self) StartUpload(commit.round);
}

void SideJobs::StartUpload(RoundId round) {
  // An upload that is still under way gives way: the newer state is worth more.
  upload_ = Upload{round, context_.NewOp(), 0, 0, false};
  ops_.insert(upload_->op);
  context_.Emit(action::TakeSnapshot{upload_->op, action::SnapshotKind::kCheckpoint});
}

void SideJobs::TakeEvaluationSnapshot() {
  // The chunk under way reads the snapshot before.
  if (!wanted_evaluation_ || chunk_under_way_) return;
  evaluation_ = *wanted_evaluation_;
  wanted_evaluation_.reset();
  partial_.reset();
  std::erase_if(orders_, [&](const Evaluate& order) { return order.evaluation < evaluation_; });
  snapshot_op_ = context_.NewOp();
  ops_.insert(snapshot_op_);
  context_.Emit(action::TakeSnapshot{snapshot_op_, action::SnapshotKind::kEvaluation});
}

bool SideJobs::OnEvaluate(const Evaluate& order) {
  if (order.evaluation < evaluation_) return true;
  orders_.push_back(order);
  return orders_.size() <= kMaxOrders;
}

bool SideJobs::OnOpDone(const event::OpDone& done) {
  if (auto digest = digests_.extract(done.op)) {
    digest.mapped().digest = done.replica;
    context_.Tell(digest.mapped());
  }
  return ops_.erase(done.op) == 1;
}

void SideJobs::Update(bool idle) {
  TakeEvaluationSnapshot();
  if (idle) StartChunk();
  PumpUpload();
}

void SideJobs::StartChunk() {
  if (chunk_under_way_ || ops_.contains(snapshot_op_) || wanted_evaluation_ || orders_.empty())
    return;
  const Evaluate& order = orders_.front();
  if (order.evaluation != evaluation_) return;
  if (!partial_) {
    partial_ = EvaluationResult{order.evaluation, {order.range.from, order.range.from}, 0, 0};
  }
  const std::uint64_t from = partial_->range.to;
  const std::uint64_t to =
      std::min<std::uint64_t>(order.range.to, from + context_.config.evaluation_chunk);
  chunk_under_way_ = true;
  context_.Emit(action::EvaluateChunk{order.evaluation, {from, to}});
}

void SideJobs::OnChunkEvaluated(const event::ChunkEvaluated& done) {
  LOCKSTEP_CHECK(chunk_under_way_, "evaluated without an order");
  chunk_under_way_ = false;
  if (!partial_ || orders_.empty() || done.evaluation != evaluation_) return;
  partial_->range.to = done.range.to;
  partial_->loss_sum += done.loss_sum;
  partial_->correct += done.correct;
  if (partial_->range.to < orders_.front().range.to) return;
  context_.Tell(*partial_);
  partial_.reset();
  orders_.pop_front();
}

void SideJobs::OnChunkUploaded() {
  LOCKSTEP_CHECK(chunks_under_way_ > 0, "uploaded a chunk that was not sent");
  --chunks_under_way_;
}

void SideJobs::PumpUpload() {
  if (!upload_ || ops_.contains(upload_->op)) return;
  const std::uint64_t tensor_bytes = context_.layout.parameter_count() * sizeof(float);
  while (!upload_->complete && chunks_under_way_ < context_.config.chunks_in_flight) {
    action::UploadChunk chunk{upload_->round, upload_->tensor, upload_->offset, 0, false};
    chunk.bytes = std::min(context_.config.chunk_bytes, tensor_bytes - upload_->offset);
    upload_->offset += chunk.bytes;
    if (upload_->offset == tensor_bytes) {
      upload_->complete = upload_->tensor == context_.config.state_tensors;
      chunk.last = upload_->complete;
      ++upload_->tensor;
      upload_->offset = 0;
    }
    ++chunks_under_way_;
    context_.Emit(chunk);
  }
}

}  // namespace lockstep::worker
