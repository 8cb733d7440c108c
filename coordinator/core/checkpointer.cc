#include "coordinator/core/checkpointer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <tuple>

#include "base/check.h"

namespace lockstep::coordinator {
namespace {

// FP32 values, little-endian: all bits of the exponent say infinite or no number. A state with such
// values is of no use to whoever resumes from it.
bool AllFinite(std::span<const std::byte> bytes) {
  constexpr std::uint32_t kExponent = 0x7F800000;
  bool finite = true;
  for (std::size_t at = 0; at + sizeof(std::uint32_t) <= bytes.size();
       at += sizeof(std::uint32_t)) {
    std::uint32_t bits;
    std::memcpy(&bits, bytes.data() + at, sizeof bits);
    finite &= (bits & kExponent) != kExponent;
  }
  return finite;
}

}  // namespace

// Every contributor is level and was in time. Among those, the one with the shortest units has time
// to spare. Distrusted ones come last: when one of them is the best, all have been tried.
std::optional<MemberId> Checkpointer::ChooseWriter(const msg::Commit& commit) const {
  std::optional<MemberId> best;
  const auto cost = [&](const Member& m) {
    const bool contributes =
        std::ranges::find(commit.parts, m.id, &CommittedPart::member) != commit.parts.end();
    return std::tuple(distrusted_.contains(m.id), !contributes, m.unit_times.mean, m.id);
  };
  for (const Member& member : job_->members.all()) {
    if (!member.live()) continue;
    if (!best || cost(member) < cost(job_->members.at(best->worker))) best = member.id;
  }
  return best;
}

// One checkpoint is made at a time: one that is due meanwhile is owed, and made at the next commit.
// The last one of a job replaces whatever is under way. A further attempt at the round makes
// another state, so the checkpoint begins again.
std::optional<MemberId> Checkpointer::AtCommit(const msg::Commit& commit, const Sampler& after,
                                               bool epoch_ended, bool last) {
  const CheckpointSection& section = job_->start.config.checkpoint;
  const bool again = current_ && current_->round == commit.round && !current_->saving;
  if (begun_at_ == kNever) begun_at_ = job_->now();  // a job's first commit
  const bool by_time =
      section.every_s > 0 && job_->now() >= begun_at_ + FromSeconds(section.every_s);
  const bool due =
      last || owed_ || again || by_time ||
      (section.every_rounds > 0 && (commit.round.value + 1) % section.every_rounds == 0) ||
      (section.every_epochs > 0 && epoch_ended &&
       (commit.epoch.value + 1) % section.every_epochs == 0);
  if (!due) return std::nullopt;
  if (current_ && !last && !again) {
    owed_ = true;
    return std::nullopt;
  }
  // All of it has come, and sharded state may be lost with a replica: nobody gathers it again.
  if (again && last && sharded_ && current_->complete && current_->attempt == commit.attempt) {
    return std::nullopt;
  }
  const std::optional<MemberId> writer = ChooseWriter(commit);
  if (!writer) return std::nullopt;
  if (distrusted_.contains(*writer)) {
    distrusted_.clear();
    owed_ = false;
    OnSaved(commit.round, "no member streams the state that a majority has");
    return std::nullopt;
  }
  // Sent again while it is written: the same goes on. Members that were told of that writer before
  // do not say their states again, so what they have said must not be forgotten.
  if (again && last && current_->writer == *writer && (current_->any || !sharded_) &&
      current_->attempt == commit.attempt) {
    return writer;
  }
  if (current_) Drop();
  owed_ = false;
  Current checkpoint;
  checkpoint.round = commit.round;
  checkpoint.writer = *writer;
  checkpoint.attempt = commit.attempt;
  for (const Member& member : job_->members.all()) {
    if (member.live() && (!sharded_ || member.id == *writer)) {
      checkpoint.voters.push_back(member.id);
    }
  }
  LOCKSTEP_CHECK(std::ranges::binary_search(checkpoint.voters, *writer),
                 "worker {} writes a checkpoint and has no vote", writer->worker);
  checkpoint.last_piece = begun_at_ = job_->now();
  // What describes the state is noted with the commit; the totals follow when the round is closed.
  checkpoint.closed = closed_ == commit.round;
  checkpoint.state = StateAfter(commit, after.State());
  current_ = std::move(checkpoint);
  return writer;
}

JobState Checkpointer::StateBefore(RoundId next, std::uint64_t updates,
                                   SamplerState sampler) const {
  JobState state;
  state.totals = job_->closed().totals;
  state.next_round = next;
  state.updates = updates;
  state.sampler = std::move(sampler);
  state.dataset_digest = job_->agreed().dataset_digest;
  state.test_samples = job_->agreed().test_samples;
  state.parameter_count = job_->agreed().parameter_count;
  state.state_tensors = job_->agreed().state_tensors;
  state.tensors = job_->agreed().tensors;
  state.state_names = job_->agreed().state_names;
  state.settings = settings_;
  return state;
}

// The totals are those that include the round: a job that resumes from here has counted it.
void Checkpointer::OnClosed(RoundId round) {
  closed_ = round;
  if (!current_ || current_->round != round) return;
  current_->closed = true;
  current_->last_piece = std::max(current_->last_piece, job_->now());
  current_->state.totals = job_->closed().totals;
  SaveIfPossible();
}

// Pieces come in order and without gaps over one connection, so anything else is a violation. They
// are handed on as they come: the coordinator never holds a whole state.
Status Checkpointer::OnStateChunk(Member& from, msg::StateChunk message) {
  if (!current_ || current_->writer != from.id || message.round != current_->round) return {};
  Current& checkpoint = *current_;
  const auto wrong = [](const char* what) { return Error{ErrorCode::kInvalid, what}; };
  if (checkpoint.complete) return wrong("streams more state than there is");
  const std::uint64_t tensor_bytes = job_->agreed().parameter_count * 4;
  if (checkpoint.offset == tensor_bytes) {
    ++checkpoint.tensor;
    checkpoint.offset = 0;
  }
  if (message.tensor != checkpoint.tensor || message.offset != checkpoint.offset ||
      message.tensor > job_->agreed().state_tensors || message.bytes.empty() ||
      message.bytes.size() > tensor_bytes - message.offset) {
    return wrong("streams its state out of order");
  }
  if (message.bytes.size() % sizeof(float) != 0) return wrong("streams a part of a number");
  // Counted here and not by the file's writer, so that a wrong stream never reaches the disk.
  checkpoint.offset += message.bytes.size();
  const bool end =
      checkpoint.tensor == job_->agreed().state_tensors && checkpoint.offset == tensor_bytes;
  if (message.last != end) return wrong("streams less or more state than there is");
  LOCKSTEP_CHECK(checkpoint.offset <= tensor_bytes, "a checkpoint of more than its tensors");
  checkpoint.complete = end;
  checkpoint.any = true;
  checkpoint.last_piece = job_->now();
  checkpoint.digest.Update(message.bytes);
  checkpoint.finite = checkpoint.finite && AllFinite(message.bytes);
  job_->Emit(CheckpointPiece{std::move(message)});
  SaveIfPossible();
  return {};
}

// Only members that were live at the commit vote; later ones have copied the state in question.
Status Checkpointer::OnReplicaDigest(Member& from, const msg::ReplicaDigest& message) {
  if (!current_ || message.round != current_->round || message.attempt != current_->attempt ||
      !from.live() || !std::ranges::binary_search(current_->voters, from.id)) {
    return {};
  }
  // A report that is repeated after the commit was sent again is the same state and one vote.
  current_->votes[from.id] = message.digest;
  current_->last_piece = job_->now();
  SaveIfPossible();
  return {};
}

// A strict majority of those who may vote, the writer among them. When all have voted without a
// majority, no state can be trusted and the job cannot go on (I1).
std::optional<Digest128> Checkpointer::Confirmed() {
  std::map<Digest128, std::size_t> counts;
  for (const auto& [id, digest] : current_->votes) ++counts[digest];
  for (const auto& [digest, count] : counts) {
    if (2 * count > current_->voters.size()) return digest;
  }
  if (current_->votes.size() == current_->voters.size()) {
    job_->Fail(fmt::format("the members' states after round {} differ and no majority agrees",
                           current_->round));
  }
  return std::nullopt;
}

// Four things make a checkpoint valid: the round is closed, all bytes are there, a strict majority
// has that digest, and every value is a finite number.
void Checkpointer::SaveIfPossible() {
  Current& checkpoint = *current_;
  if (!checkpoint.closed || !checkpoint.complete || checkpoint.saving) return;
  LOCKSTEP_CHECK(closed_ && *closed_ >= checkpoint.round,
                 "a checkpoint of round {}, which is not closed", checkpoint.round);
  LOCKSTEP_CHECK(checkpoint.votes.size() <= checkpoint.voters.size(),
                 "{} members of {} confirm a checkpoint", checkpoint.votes.size(),
                 checkpoint.voters.size());
  const std::optional<Digest128> confirmed =
      sharded_ ? std::optional(checkpoint.digest.Digest()) : Confirmed();
  if (!confirmed) return;
  // Members whose own state is different, whether they wrote or not.
  for (const auto& [id, digest] : checkpoint.votes) {
    Member* member = job_->members.Find(id);
    if (digest == *confirmed || member == nullptr || !member->live()) continue;
    job_->Log(LogLevel::kWarning,
              "worker {}: its state after round {} differs from the majority's, it catches up",
              id.worker, checkpoint.round);
    job_->PutInDoubt(*member, "its state differs from the majority's");
  }
  if (checkpoint.digest.Digest() != *confirmed) {
    return NotKept("it is not what a majority of the members has");
  }
  checkpoint.saving = true;
  checkpoint.state.digest = *confirmed;
  if (checkpoint.finite) {
    job_->Emit(SaveCheckpoint{checkpoint.round, checkpoint.state});
  } else {
    job_->Emit(DropCheckpoint{checkpoint.round});
    OnSaved(checkpoint.round, "it has values that are infinite or no numbers");
  }
}

// The member that streamed it is asked last from now on; the next commit asks another one.
void Checkpointer::NotKept(const std::string& why) {
  job_->Log(LogLevel::kWarning,
            "the checkpoint after round {} that worker {} wrote is not kept: {}", current_->round,
            current_->writer.worker, why);
  distrusted_.insert(current_->writer);
  Drop();
  owed_ = true;
}

// The outcome, good or bad, is what the end of a job waits for. A failed write fails that
// checkpoint alone, unless it is the last one.
void Checkpointer::OnSaved(RoundId round, const std::string& error) {
  if (!error.empty()) {
    job_->Log(LogLevel::kError, "the checkpoint after round {} was not written: {}", round, error);
  } else {
    // Epochs may take less than a second: people need not read of each checkpoint.
    const bool tell = !told_at_ || job_->now() - *told_at_ >= std::chrono::minutes(1);
    if (tell) told_at_ = job_->now();
    job_->Log(tell ? LogLevel::kInfo : LogLevel::kDebug, "checkpoint after round {}", round);
    job_->saved_round.Write() = round;
  }
  decided_ = round;
  decided_error_ = error;
  if (current_ && current_->round == round) current_.reset();
}

void Checkpointer::OnCopied(const Member& from, const msg::Copied& message) {
  const std::uint64_t all =
      (1 + std::uint64_t{job_->agreed().state_tensors}) * job_->agreed().parameter_count;
  if (!current_ || current_->writer != from.id || message.values <= current_->copied ||
      message.values > all) {
    return;
  }
  current_->copied = message.values;
  current_->last_piece = job_->now();
}

// Without the writer there is no file; without a voter there may still be a majority of the others.
// With a sharded optimizer all pieces have come then, and only the round's end is awaited. The
// writer may have held the only copy of a part.
void Checkpointer::OnOut(const MemberId& member, bool doubtful) {
  distrusted_.erase(member);
  if (!current_) return;
  if (current_->writer == member && !current_->complete) {
    job_->Log(LogLevel::kWarning,
              "the checkpoint after round {} is dropped: worker {}, which wrote it, is gone or "
              "behind",
              current_->round, member.worker);
    Drop();
    owed_ = true;
    return;
  }
  // Its vote still counts.
  if (!current_->votes.contains(member)) std::erase(current_->voters, member);
  const bool unconfirmed =
      sharded_ ? doubtful && current_->writer == member : current_->voters.empty();
  if (unconfirmed && !current_->saving) {
    job_->Log(LogLevel::kWarning,
              "nobody is left to confirm the checkpoint after round {}: it is not kept",
              current_->round);
    Drop();
    owed_ = true;
    return;
  }
  SaveIfPossible();
}

// A writer that does not get on is given up as a writer. Liveness decides whether it is lost.
void Checkpointer::Tick() {
  if (!current_ || current_->saving || !current_->closed) return;
  if (job_->now() - current_->last_piece < job_->bounds.Upload()) return;
  if (current_->complete) {
    job_->Log(LogLevel::kWarning,
              "too few members say what their state after round {} is: its checkpoint is not kept",
              current_->round);
  } else {
    job_->Log(LogLevel::kWarning, "worker {} does not write the checkpoint after round {}",
              current_->writer.worker, current_->round);
  }
  distrusted_.insert(current_->writer);
  Drop();
  owed_ = true;
}

// The pieces that were handed on are of no use any more, and the shell removes them.
void Checkpointer::Drop() {
  LOCKSTEP_CHECK(current_, "no checkpoint to drop");
  if (current_->any) job_->Emit(DropCheckpoint{current_->round});
  current_.reset();
}

void Checkpointer::CheckInvariants() const {
  LOCKSTEP_CHECK(distrusted_.size() <= job_->members.slots(), "I7: {} writers are distrusted",
                 distrusted_.size());
  if (!current_) return;
  LOCKSTEP_CHECK(current_->offset <= job_->parameter_bytes() &&
                     current_->tensor <= job_->agreed().state_tensors,
                 "a checkpoint of more than its tensors");
  LOCKSTEP_CHECK(!current_->saving || (current_->closed && current_->complete),
                 "the checkpoint after round {} is saved before it is one", current_->round);
  for (const auto& [id, digest] : current_->votes) {
    LOCKSTEP_CHECK(std::ranges::binary_search(current_->voters, id),
                   "I1: worker {} confirms a checkpoint and was not there", id.worker);
  }
}

// The job ends without it: no piece of it stays in the run directory.
void Checkpointer::GiveUp() {
  if (current_) Drop();
}

}  // namespace lockstep::coordinator
