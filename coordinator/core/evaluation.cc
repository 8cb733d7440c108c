#include "coordinator/core/evaluation.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::coordinator {
namespace {

// Enough chunks for quick members to take more of the test set than slow ones, without knowing
// beforehand who is quick.
constexpr std::uint64_t kChunksPerMember = 4;

}  // namespace

// The commit carries the id, because each member takes its snapshot of the parameters when it
// applies that very round. One evaluation runs at a time. One that is due meanwhile is left out,
// since people want a curve, not each of its points.
std::uint32_t Evaluation::AtCommit(RoundId round, Epoch epoch, bool epoch_ended, bool last) {
  // A further attempt at the round it belongs to. Results for the one before may be under way, of
  // a member that had applied it and was lost: under another id nobody takes them for this one's.
  if (current_ && current_->round == round) {
    Current& evaluation = *current_;
    evaluation.id = ++ids_;
    evaluation.holders.clear();
    for (Chunk& chunk : evaluation.chunks) chunk = Chunk{chunk.range};
    evaluation.next = 0;
    evaluation.left = evaluation.chunks.size();
    evaluation.loss_sum = 0;
    evaluation.correct = 0;
    return evaluation.id;
  }
  const EvaluationSection& section = job_->start.config.evaluation;
  const bool due =
      last || (section.every_rounds > 0 && (round.value + 1) % section.every_rounds == 0) ||
      (section.every_epochs > 0 && epoch_ended && (epoch.value + 1) % section.every_epochs == 0);
  if (!due || job_->agreed().test_samples == 0) return 0;
  if (current_ && !last) {
    job_->Log(LogLevel::kInfo,
              "round {} is not evaluated: the evaluation after round {} is still under way", round,
              current_->round);
    return 0;
  }
  LOCKSTEP_CHECK(!current_ || current_->round < round, "an evaluation of round {} after {}", round,
                 current_->round);
  Current evaluation;
  evaluation.id = ++ids_;
  evaluation.round = round;
  evaluation.epoch = epoch;
  const std::uint64_t chunks = std::min(job_->agreed().test_samples,
                                        kChunksPerMember * std::max(job_->members.CountLive(), 1u));
  for (std::uint64_t i = 0; i < chunks; ++i) {
    const SampleRange range{job_->agreed().test_samples * i / chunks,
                            job_->agreed().test_samples * (i + 1) / chunks};
    evaluation.chunks.push_back(Chunk{range});
  }
  evaluation.left = evaluation.chunks.size();
  current_ = std::move(evaluation);
  return current_->id;
}

// A member has a snapshot, and work to do, from the moment at which it applies the round.
void Evaluation::OnApplied(Member& member, RoundId round) {
  if (!current_ || current_->round != round) return;
  current_->holders.push_back(member.id);
  Give(member);
}

// A member has at most one chunk at a time.
bool Evaluation::Busy(const MemberId& member) const {
  return std::any_of(current_->chunks.begin(), current_->chunks.end(),
                     [&](const Chunk& chunk) { return !chunk.done && chunk.with == member; });
}

// New chunks first; then those whose member is silent for long, given a second time: the first
// result counts, so an evaluation never waits for a straggler.
void Evaluation::Give(Member& member) {
  if (member.away()) return;  // at one of the next ticks
  Current& evaluation = *current_;
  Chunk* chunk = nullptr;
  if (evaluation.next < evaluation.chunks.size()) {
    chunk = &evaluation.chunks[evaluation.next++];
  } else {
    // The chunk goes to another member than the silent one that has it.
    for (Chunk& candidate : evaluation.chunks) {
      const bool stuck =
          !candidate.with || candidate.given + job_->bounds.EvaluationChunk() <= job_->now();
      if (!candidate.done && stuck && candidate.with != member.id) {
        chunk = &candidate;
        break;
      }
    }
  }
  if (chunk == nullptr) return;
  LOCKSTEP_CHECK(!chunk->done && chunk->range.size() > 0, "a chunk is given out for nothing");
  chunk->with = member.id;
  chunk->given = job_->now();
  if (std::ranges::find(chunk->asked, member.id) == chunk->asked.end()) {
    chunk->asked.push_back(member.id);
  }
  job_->Send(member, msg::Evaluate{evaluation.id, evaluation.round, chunk->range});
}

// Results for an evaluation that is over or was begun anew are stale.
Status Evaluation::OnEvaluationResult(Member& from, const msg::EvaluationResult& message) {
  if (message.evaluation > ids_) return Error{ErrorCode::kInvalid, "evaluated what was not asked"};
  if (!current_ || message.evaluation != current_->id) return {};
  Current& evaluation = *current_;
  const auto chunk =
      std::lower_bound(evaluation.chunks.begin(), evaluation.chunks.end(), message.range,
                       [](const Chunk& c, const SampleRange& range) { return c.range < range; });
  // A member that was late with it was still asked, although another one was asked too.
  if (chunk == evaluation.chunks.end() || chunk->range != message.range ||
      std::ranges::find(chunk->asked, from.id) == chunk->asked.end() ||
      message.correct > message.range.size()) {
    return Error{ErrorCode::kInvalid, "evaluated what was not asked"};
  }
  // A chunk that was given out twice counts once, by the first answer: the snapshots are the same
  // (I1).
  if (!chunk->done) {
    chunk->done = true;
    if (chunk->with == from.id) job_->bounds.NoteEvaluatedChunk(job_->now() - chunk->given);
    evaluation.loss_sum += message.loss_sum;
    evaluation.correct += message.correct;
    LOCKSTEP_CHECK(evaluation.left > 0, "an evaluation has more results than chunks");
    --evaluation.left;
  }
  if (evaluation.left > 0) {
    GiveIfIdle(from);
    return {};
  }
  RecordIfPossible();
  return {};
}

// The last results may have come before.
void Evaluation::OnClosed(RoundId round) {
  if (!current_ || current_->round != round) return;
  current_->closed = true;
  RecordIfPossible();
}

// Only a closed round is recorded: until then another attempt may replace this one.
void Evaluation::RecordIfPossible() {
  const Current& evaluation = *current_;
  if (evaluation.left > 0 || !evaluation.closed) return;
  LOCKSTEP_CHECK(evaluation.correct <= job_->agreed().test_samples, "{} samples of {} are right",
                 evaluation.correct, job_->agreed().test_samples);
  const auto samples = static_cast<double>(job_->agreed().test_samples);
  last_ = EvaluationRecord{evaluation.round, evaluation.epoch, job_->agreed().test_samples,
                           evaluation.loss_sum / samples,
                           static_cast<double>(evaluation.correct) / samples};
  job_->Emit(EvaluationDone{*last_});
  current_.reset();
}

// Its chunk goes to a member with the same snapshot.
void Evaluation::OnOut(const MemberId& member) {
  if (!current_) return;
  std::erase(current_->holders, member);
  for (Chunk& chunk : current_->chunks) {
    if (!chunk.done && chunk.with == member) chunk.with.reset();
  }
  GiveToIdle();
}

// No other event shows that a chunk has been out for too long.
void Evaluation::Tick() {
  if (current_) GiveToIdle();
}

// Gives one chunk to each holder that has none.
void Evaluation::GiveToIdle() {
  for (const MemberId& id : current_->holders) {
    Member* member = job_->members.Find(id);
    if (member != nullptr) GiveIfIdle(*member);
  }
}

// A member that was put behind may still report its result, but no longer holds the snapshot.
void Evaluation::GiveIfIdle(Member& member) {
  const auto& holders = current_->holders;
  if (std::ranges::find(holders, member.id) != holders.end() && !Busy(member.id)) Give(member);
}

void Evaluation::CheckInvariants() const {
  if (!current_) return;
  std::size_t left = 0;
  std::uint64_t end = 0;
  for (const Chunk& chunk : current_->chunks) {
    LOCKSTEP_CHECK(chunk.range.from == end && chunk.range.size() > 0,
                   "samples [{}, {}) of the test set follow on {}", chunk.range.from,
                   chunk.range.to, end);
    end = chunk.range.to;
    left += chunk.done ? 0 : 1;
  }
  LOCKSTEP_CHECK(end == job_->agreed().test_samples, "{} samples of {} are evaluated", end,
                 job_->agreed().test_samples);
  LOCKSTEP_CHECK(left == current_->left, "{} chunks are to be evaluated, not {}", left,
                 current_->left);
  LOCKSTEP_CHECK(current_->chunks.size() <= kChunksPerMember * job_->members.slots(),
                 "I7: {} chunks of the test set", current_->chunks.size());
}

// Said, because a number that people wait for does not come.
void Evaluation::GiveUp(const std::string& why) {
  if (!current_) return;
  job_->Log(LogLevel::kWarning, "the evaluation after round {} is given up: {}", current_->round,
            why);
  current_.reset();
}

}  // namespace lockstep::coordinator
