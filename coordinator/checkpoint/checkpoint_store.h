// The checkpoints of a run: checkpoints/round-0000000123.safetensors with the tensors, and
// round-0000000123.json with where the job stands. The second is written last and makes the first
// valid; both begin under a temporary name. Control thread only, unless stated otherwise.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/messages.h"
#include "base/result.h"
#include "coordinator/job/job_state.h"

namespace lockstep::coordinator {

class CheckpointStore {
 public:
  // `keep`: how many of the newest stay.
  CheckpointStore(std::filesystem::path directory, std::uint32_t keep);
  ~CheckpointStore();

  // Describe gives the tensors' names and lengths, before the first piece. They come from a
  // worker's Ready.
  void Describe(const msg::Ready& ready);

  // A piece of the checkpoint after piece.round, in order from its first byte. After an error,
  // pieces are ignored up to the next first one, and Save returns the error.
  void Add(const msg::StateChunk& piece);
  // Returns a function to call on any thread, once, saves in their order. It makes the checkpoint
  // valid and removes old ones. Bringing gigabytes to a disk may take longer than anybody waits for
  // a heartbeat. On an error nothing is left of it and the last good one stays.
  std::function<Status()> Save(RoundId round, const JobState& state);
  void Drop(RoundId round);

  struct Loaded {
    RoundId round;
    JobState state;
    std::filesystem::path tensors;
  };
  // Returns the newest checkpoint, read once from its first byte to its last and found sound. Its
  // values have the digest that a majority of the members confirmed. Names and shapes are the
  // model's, and all values are finite. nullopt when there is none. An error is one line, names the
  // file and says what is wrong with it.
  Result<std::optional<Loaded>> Newest() const;

 private:
  struct Writing;

  std::filesystem::path directory_;
  std::uint32_t keep_;
  std::optional<msg::Ready> layout_;
  std::unique_ptr<Writing> writing_;
};

}  // namespace lockstep::coordinator
