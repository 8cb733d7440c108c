#include "worker/core/initial_broadcast.h"

#include <algorithm>

#include "base/check.h"

namespace lockstep::worker {

// What it may have taken of another worker's, which has gone, is written over.
void InitialBroadcast::OnGive(const msg::GiveParameters& give, bool started) {
  if (give.giving != giving_) given_ = 0;
  giving_ = give.giving;
  upto_ = give.upto;
  if (started || initialized_) return;
  initialized_ = true;
  context_.Emit(action::InitializeState{});
}

void InitialBroadcast::OnChunkGiven() {
  LOCKSTEP_CHECK(chunks_under_way_ > 0, "gave a chunk that was not sent");
  --chunks_under_way_;
}

// Once a round is in them they are of no use, and the coordinator knows: what was asked for before
// that round was committed is given up.
void InitialBroadcast::Update(bool first) {
  if (!first) upto_ = given_;
  while (given_ < upto_ && chunks_under_way_ < context_.config.chunks_in_flight) {
    const std::uint64_t bytes = std::min(context_.config.chunk_bytes, upto_ - given_);
    context_.Emit(action::GiveChunk{giving_, given_, bytes});
    given_ += bytes;
    ++chunks_under_way_;
  }
}

}  // namespace lockstep::worker
