#include "worker/core/checkpoint_upload.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::worker {

// Right after the update and before the next one, so that all members speak of the same state.
void CheckpointUpload::OnCheckpoint(const msg::Commit& commit) {
  if (!commit.checkpoint_writer) return;
  const std::uint64_t digest = context_.NewOp();
  digests_[digest] = {commit.round, commit.attempt, {}};
  context_.Emit(action::DigestReplica{digest, commit.round});
  if (commit.checkpoint_writer != context_.config.self) return;
  // An upload that is still under way gives way: the newer state is worth more.
  upload_ = Upload{.round = commit.round, .op = context_.NewOp()};
  snapshots_.insert(upload_->op);
  context_.Emit(action::TakeSnapshot{upload_->op, action::SnapshotKind::kCheckpoint});
}

std::optional<std::uint64_t> CheckpointUpload::OnGather(const msg::Commit& commit) {
  if (commit.checkpoint_writer != context_.config.self) return std::nullopt;
  upload_ = Upload{.round = commit.round, .op = context_.NewOp()};
  snapshots_.insert(upload_->op);
  return upload_->op;
}

void CheckpointUpload::OnNotGathered(std::uint64_t op) {
  snapshots_.erase(op);
  if (upload_ && upload_->op == op) upload_.reset();
}

// A snapshot that gave way to a newer one ends here as well, and is not uploaded.
bool CheckpointUpload::OnOpDone(const event::OpDone& done) {
  if (auto digest = digests_.extract(done.op)) {
    digest.mapped().digest = done.replica;
    context_.Tell(digest.mapped());
    return true;
  }
  return snapshots_.erase(done.op) == 1;
}

void CheckpointUpload::OnChunkUploaded() {
  LOCKSTEP_CHECK(chunks_under_way_ > 0, "uploaded a chunk that was not sent");
  --chunks_under_way_;
}

// Tensor after tensor, in order: the coordinator writes the file as it comes.
void CheckpointUpload::Update() {
  if (!upload_ || snapshots_.contains(upload_->op)) return;
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
    LOCKSTEP_CHECK(chunk.bytes > 0, "an empty chunk of tensor {}", chunk.tensor);
    ++chunks_under_way_;
    context_.Emit(chunk);
  }
}

void CheckpointUpload::CheckInvariants() const {
  LOCKSTEP_CHECK(chunks_under_way_ <= context_.config.chunks_in_flight,
                 "I7: {} chunks of a checkpoint under way", chunks_under_way_);
  if (!upload_) return;
  LOCKSTEP_CHECK(upload_->complete == (upload_->tensor > context_.config.state_tensors),
                 "a checkpoint that ends at tensor {} of {}", upload_->tensor,
                 context_.config.state_tensors + 1);
  LOCKSTEP_CHECK(
      !snapshots_.contains(upload_->op) || (upload_->tensor == 0 && upload_->offset == 0),
      "a checkpoint is uploaded before its snapshot is taken");
}

}  // namespace lockstep::worker
