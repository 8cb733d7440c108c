#include "coordinator/checkpointer.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace lockstep::coordinator {

std::optional<MemberId> Checkpointer::ChooseWriter(const Commit& commit) const {
  std::optional<MemberId> best;
  const auto cost = [&](const Member& m) {
    return std::tuple(m.contributed != commit.round, m.unit_times.mean, m.id);
  };
  for (const Member& member : job_->members.all()) {
    if (!member.live()) continue;
    if (!best || cost(member) < cost(job_->members.at(best->worker))) best = member.id;
  }
  return best;
}

void Checkpointer::AtCommit(Commit* commit, const Sampler& after, bool epoch_ended, bool last) {
  commit->checkpoint_writer.reset();
  const CheckpointSection& section = job_->start.config.checkpoint;
  const bool again = current_ && current_->round == commit->round && !current_->saving;
  const bool due =
      last || owed_ || again ||
      (section.every_rounds > 0 && (commit->round.value + 1) % section.every_rounds == 0) ||
      (section.every_epochs > 0 && epoch_ended &&
       (commit->epoch.value + 1) % section.every_epochs == 0);
  if (!due) return;
  if (current_ && !last && !again) {
    owed_ = true;
    return;
  }
  const std::optional<MemberId> writer = ChooseWriter(*commit);
  if (!writer) return;
  // Sent again while it is written: the same goes on.
  if (again && last && current_->writer == *writer && current_->any) {
    commit->checkpoint_writer = writer;
    return;
  }
  if (current_) Drop();
  owed_ = false;
  Current checkpoint;
  checkpoint.round = commit->round;
  checkpoint.writer = *writer;
  checkpoint.last_piece = job_->now;
  checkpoint.closed = closed_ == commit->round;
  checkpoint.state.totals = job_->totals;
  checkpoint.state.next_round = commit->round.Next();
  checkpoint.state.updates = commit->update;
  checkpoint.state.sampler = after.State();
  checkpoint.state.dataset_digest = job_->dataset_digest;
  checkpoint.state.test_samples = job_->test_samples;
  checkpoint.state.parameter_count = job_->parameter_count;
  checkpoint.state.state_tensors = job_->state_tensors;
  current_ = std::move(checkpoint);
  commit->checkpoint_writer = writer;
}

void Checkpointer::OnClosed(RoundId round) {
  closed_ = round;
  if (!current_ || current_->round != round) return;
  current_->closed = true;
  current_->last_piece = std::max(current_->last_piece, job_->now);
  current_->state.totals = job_->totals;
  SaveIfPossible();
}

Status Checkpointer::On(Member& from, StateChunk message) {
  if (!current_ || current_->writer != from.id || message.round != current_->round) return {};
  Current& checkpoint = *current_;
  const auto wrong = [](const char* what) { return Error{ErrorCode::kInvalid, what}; };
  if (checkpoint.complete) return wrong("streams more state than there is");
  const std::uint64_t tensor_bytes = job_->parameter_count * 4;
  if (checkpoint.offset == tensor_bytes) {
    ++checkpoint.tensor;
    checkpoint.offset = 0;
  }
  if (message.tensor != checkpoint.tensor || message.offset != checkpoint.offset ||
      message.tensor > job_->state_tensors || message.bytes.empty() ||
      message.bytes.size() > tensor_bytes - message.offset) {
    return wrong("streams its state out of order");
  }
  checkpoint.offset += message.bytes.size();
  const bool end = checkpoint.tensor == job_->state_tensors && checkpoint.offset == tensor_bytes;
  if (message.last != end) return wrong("streams less or more state than there is");
  checkpoint.complete = end;
  checkpoint.any = true;
  checkpoint.last_piece = job_->now;
  job_->out->push_back(CheckpointPiece{std::move(message)});
  SaveIfPossible();
  return {};
}

void Checkpointer::SaveIfPossible() {
  if (!current_->closed || !current_->complete || current_->saving) return;
  current_->saving = true;
  job_->out->push_back(SaveCheckpoint{current_->round, current_->state});
}

void Checkpointer::OnSaved(RoundId round, const std::string& error) {
  if (!error.empty()) {
    job_->Log(LogLevel::kError, "the checkpoint after round {} was not written: {}", round, error);
  } else {
    job_->Log(LogLevel::kInfo, "checkpoint after round {}", round);
  }
  settled_ = round;
  if (current_ && current_->round == round) current_.reset();
}

void Checkpointer::OnOut(const MemberId& member) {
  if (!current_ || current_->writer != member || current_->complete) return;
  job_->Log(LogLevel::kWarning, "worker {}, which wrote the checkpoint after round {}, is out",
            member.worker, current_->round);
  Drop();
  owed_ = true;
}

void Checkpointer::Tick() {
  if (!current_ || current_->complete || !current_->closed) return;
  if (job_->now - current_->last_piece < job_->bounds.Upload()) return;
  job_->Log(LogLevel::kWarning, "worker {} does not write the checkpoint after round {}",
            current_->writer.worker, current_->round);
  Drop();
  owed_ = true;
}

void Checkpointer::Drop() {
  if (current_->any) job_->out->push_back(DropCheckpoint{current_->round});
  current_.reset();
}

void Checkpointer::GiveUp() {
  if (current_) Drop();
}

}  // namespace lockstep::coordinator
