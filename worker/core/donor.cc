#include "worker/core/donor.h"

#include "base/check.h"

namespace lockstep::worker {

// A joiner that asks again has given up what it asked for before.
Status Donor::OnStateWant(const MemberId& joiner, const StateWant& want) {
  if (want.bucket >= context_.layout.copy_count()) {
    return Error{ErrorCode::kInvalid, fmt::format("it asked for copy {}", want.bucket)};
  }
  Erase(joiner);
  requests_[joiner].want = want;
  return {};
}

// By its tag: word of an older copy must not free the buffer of the present one.
void Donor::OnStateTaken(const MemberId& joiner, const StateTaken& taken) {
  const auto at = requests_.find(joiner);
  if (at != requests_.end() && at->second.tag == taken.tag) Erase(joiner);
}

// Of a joiner that is gone by now nobody finds the request; its buffer is free again by itself.
bool Donor::OnOpDone(const event::OpDone& done) {
  for (auto& [joiner, request] : requests_) {
    if (request.op != done.op) continue;
    LOCKSTEP_CHECK(request.out && !request.ready, "{}'s copy was made twice", Name(joiner));
    request.op.reset();
    request.ready = true;
    context_.Say(joiner, StateReady{request.want.bucket, request.version, request.attempt,
                                    request.tag, request.out->index, false});
    return true;
  }
  return false;
}

// In the order of joiners, not of asking: with two buffers and one request each nobody waits long.
// A worker that is not level says so, and the joiner gets another donor.
void Donor::Update(std::optional<RoundId> next, Attempt attempt) {
  for (auto it = requests_.begin(); it != requests_.end();) {
    auto& [joiner, request] = *it;
    if (request.out) {
      ++it;
      continue;
    }
    if (!next) {
      context_.Say(joiner, StateReady{request.want.bucket, 0, Attempt(0), 0, 0, true});
      it = requests_.erase(it);
      continue;
    }
    ++it;
    // It waits for the round: a copy from before it would lack sums that the joiner cannot get.
    if (next->value < request.want.min_version) continue;
    request.out = buffers_.Take(BufferKind::kStateOut);
    if (!request.out) return;
    request.tag = context_.NewGeneration();
    request.version = next->value;
    request.attempt = attempt;
    const std::uint64_t op = context_.NewOp();
    request.op = op;
    buffers_.BeginOp(op, {*request.out});
    context_.Emit(action::CopyState{op, request.want.bucket, *request.out});
  }
}

// Each joiner its own copy: the tag alone could be guessed.
std::optional<BufferRange> Donor::FindPiece(const MemberId& joiner, const PieceName& piece) const {
  const auto at = requests_.find(joiner);
  if (at == requests_.end() || !at->second.ready || at->second.tag != piece.attempt) {
    return std::nullopt;
  }
  LOCKSTEP_CHECK(at->second.out, "I4: {}'s copy is ready and lies nowhere", Name(joiner));
  const FloatRange range{piece.offset / sizeof(float), piece.bytes / sizeof(float)};
  const std::uint64_t floats = (1 + context_.config.state_tensors) * context_.layout.largest_copy();
  if (range.end() > floats) return std::nullopt;
  return BufferRange{*at->second.out, range};
}

// Bytes that are on their way still hold the buffer (I4): given back is not yet free.
void Donor::Erase(const MemberId& joiner) {
  const auto at = requests_.find(joiner);
  if (at == requests_.end()) return;
  if (at->second.out) buffers_.Release(*at->second.out);
  requests_.erase(at);
}

void Donor::CheckInvariants() const {
  std::uint32_t copies = 0;
  for (const auto& [joiner, request] : requests_) {
    LOCKSTEP_CHECK(request.out.has_value() == (request.op || request.ready),
                   "{}'s copy has a buffer and is not made", Name(joiner));
    LOCKSTEP_CHECK(!request.op || !request.ready, "I4: {} is served a copy that is being made",
                   Name(joiner));
    if (!request.out) continue;
    ++copies;
    LOCKSTEP_CHECK(buffers_.Taken(*request.out), "I4: {}'s copy is in a free buffer", Name(joiner));
    LOCKSTEP_CHECK(request.tag != 0 && request.version >= request.want.min_version,
                   "{} is given version {} and wants {}", Name(joiner), request.version,
                   request.want.min_version);
  }
  LOCKSTEP_CHECK(copies <= kStateOutBuffers, "I7: {} copies for joiners", copies);
}

}  // namespace lockstep::worker
