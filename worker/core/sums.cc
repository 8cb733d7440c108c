#include "worker/core/sums.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::worker {

// A further attempt takes the place of the one before it, with all that was fetched for that: its
// parts, owners or both are others.
bool Sums::OnCommit(const msg::Commit& commit) {
  LOCKSTEP_CHECK(commit.term == context_.config.term, "I1: round {} is followed in term {}",
                 commit.round, commit.term);
  auto& sums = rounds_.At(commit.round).sums;
  if (sums != nullptr) {
    const Attempt known = sums->commit().attempt;
    if (known == commit.attempt) sums->NameCheckpointWriter(commit);
    if (known >= commit.attempt) return false;
    LOCKSTEP_CHECK(!sums->applied(), "I1: round {} was applied and is tried again", commit.round);
    sums.reset();  // first, so that its buffer can be taken
  }
  rounds_.SetOwners(commit.round, commit.owners);
  sums = std::make_unique<RoundSums>(with_, commit);
  return true;
}

RoundSums* Sums::Find(RoundId round, Attempt attempt) const {
  RoundSums* sums = rounds_.SumsOf(round);
  return sums != nullptr && sums->commit().attempt == attempt ? sums : nullptr;
}

void Sums::OnTakeSums(const msg::TakeSums& take) {
  if (RoundSums* sums = Find(take.commit.round, take.commit.attempt)) sums->OnTakeSums(take.holder);
}

void Sums::OnFenceAttempt(const msg::FenceAttempt& fence) {
  if (fence.term != context_.config.term) return;
  if (RoundSums* sums = Find(fence.round, fence.attempt)) {
    sums->OnFenceAttempt(fence);
  } else {
    // A promise that is kept without noting it: commits come in order, so what is not known by now
    // can come only with TakeSums, which says that it stands after all.
    context_.Tell(msg::HoldAnswer{fence.term, fence.round, fence.attempt, false, fence.order});
  }
}

// Of an attempt that is not known, or not any more, it is no business of this worker.
bool Sums::OnHedge(const msg::Hedge& hedge) {
  RoundSums* sums = Find(hedge.round, hedge.attempt);
  return sums != nullptr && sums->OnHedge(hedge.owner, hedge.by);
}

// What cannot be, whatever the round, is said to be a fault of the peer before anything is stored.
Status Sums::OnSumReady(const MemberId& peer, const SumReady& ready,
                        std::span<const std::byte> floats) {
  if (ready.buffer >= kSumBuffers || ready.generation == 0) {
    return Error{ErrorCode::kInvalid, "it published a buffer that cannot be"};
  }
  if (ready.passed &&
      (ready.passed->shard >= kMostRoots || ready.whole || ready.gone || ready.stands_in_for)) {
    return Error{ErrorCode::kInvalid, "it passes on sums that cannot be"};
  }
  for (const FloatRange& range : ready.inlined.ranges) {
    if (range.end() > context_.layout.sum_floats()) {
      return Error{ErrorCode::kInvalid, "it sent sums beyond the end of the model"};
    }
  }
  if (ready.term != context_.config.term) return {};
  if (RoundSums* sums = rounds_.SumsOf(ready.round)) {
    const Result<bool> remember = sums->OnSumReady(peer, ready);
    if (!remember.ok()) return remember.error();
    if (!*remember) return {};
  }
  if (!ready.gone) heard_.Store(peer, ready, floats);
  return {};
}

// Who was told to take everything here waits for an answer, also for the one that it is gone.
void Sums::OnSumWant(const MemberId& peer, const SumWant& want) {
  RoundSums* sums = want.term == context_.config.term ? Find(want.round, want.attempt) : nullptr;
  if (sums != nullptr && sums->OnSumWant(peer)) return;
  SumReady gone;
  gone.term = want.term;
  gone.round = want.round;
  gone.attempt = want.attempt;
  gone.generation = 1;
  gone.gone = true;
  context_.Say(peer, gone);
}

// Of a round that is over by now, or of an attempt that was replaced, nobody waits for it.
void Sums::OnFetchDone(const Fetcher::Done& done) {
  const bool partial = done.want.piece.kind == static_cast<std::uint32_t>(PieceKind::kPartialSum);
  const BufferKind to = done.want.to.buffer.kind;
  LOCKSTEP_CHECK(
      partial ? to == BufferKind::kStaging : to == BufferKind::kSum || to == BufferKind::kTaken,
      "I4: bytes that were fetched as sums of round {} are something else", done.want.piece.round);
  if (RoundSums* sums = rounds_.SumsOf(RoundId(done.want.piece.round))) sums->OnFetchDone(done);
}

// It is still wanted, from whoever else has it.
void Sums::OnDropped(const Want& want) {
  if (want.piece.kind != static_cast<std::uint32_t>(PieceKind::kSum) &&
      want.piece.kind != static_cast<std::uint32_t>(PieceKind::kPartialSum)) {
    return;
  }
  if (RoundSums* sums = rounds_.SumsOf(RoundId(want.piece.round))) sums->OnDropped(want);
}

void Sums::OnPeerUp(const MemberId& peer) {
  for (auto& [id, round] : rounds_.all()) {
    if (round.sums != nullptr) round.sums->OnPeerUp(peer);
  }
}

void Sums::OnPeerDown(const MemberId& peer) {
  for (auto& [id, round] : rounds_.all()) {
    if (round.sums != nullptr) round.sums->OnPeerDown(peer);
  }
}

bool Sums::OnOpDone(const event::OpDone& done) {
  return std::ranges::any_of(rounds_.all(), [&](auto& entry) {
    return entry.second.sums != nullptr && entry.second.sums->OnOpDone(done);
  });
}

void Sums::ForgetBefore(RoundId round) {
  heard_.ForgetBefore(round, with_.peers.committed(),
                      [this](const MemberId& peer) { return with_.peers.Knows(peer); });
}

void Sums::Update() {
  for (auto& [id, round] : rounds_.all()) {
    if (round.sums != nullptr) round.sums->Update();
  }
}

bool Sums::MayApply(RoundId round) const {
  const RoundSums* sums = rounds_.SumsOf(round);
  return sums != nullptr && sums->MayApply();
}

std::optional<std::string> Sums::Lost(RoundId round) const {
  const RoundSums* sums = rounds_.SumsOf(round);
  return sums == nullptr ? fmt::format("the commit of round {} did not come", round) : sums->Lost();
}

bool Sums::Reads(const MemberId& peer) const {
  return std::ranges::any_of(rounds_.all(), [&](const auto& entry) {
    return entry.second.sums != nullptr && entry.second.sums->Reads(peer);
  });
}

std::string Sums::Missing(RoundId round) const {
  const RoundSums* sums = rounds_.SumsOf(round);
  return sums == nullptr ? fmt::format("the commit of round {}", round) : sums->Missing();
}

std::optional<BufferRange> Sums::FindPiece(const PieceName& piece) const {
  const RoundSums* sums = rounds_.SumsOf(RoundId(piece.round));
  return sums == nullptr ? std::nullopt : sums->FindPiece(piece);
}

}  // namespace lockstep::worker
