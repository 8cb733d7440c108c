// Sends this worker's parameters to the whole job, where each worker of a new job comes with its
// own and the coordinator has chosen these (msg::GiveParameters).
//
// In: what the coordinator allows, chunks that have left. Out: InitializeState, before the start,
// and GiveChunk in order, at most a window of them under way.
#pragma once

#include <cstdint>

#include "worker/core/context.h"

namespace lockstep::worker {

class InitialBroadcast {
 public:
  explicit InitialBroadcast(Context& context) : context_(context) {}

  // `started`: the parameters are there.
  void OnGive(const msg::GiveParameters& give, bool started);
  void OnChunkGiven();
  // `first`: they are those that the job began with, or begins with.
  void Update(bool first);

  // The state of the start is this worker's own, and is there.
  bool initialized() const { return initialized_; }

 private:
  Context& context_;
  bool initialized_ = false;
  std::uint32_t giving_ = 0;
  std::uint64_t upto_ = 0;              // bytes
  std::uint64_t given_ = 0;             // given_ <= upto_
  std::uint32_t chunks_under_way_ = 0;  // also of a broadcast before
};

}  // namespace lockstep::worker
