// The checkpoints of a run: checkpoints/round-0000000123.safetensors with the tensors, and
// round-0000000123.json with where the job stands. The second is written last and makes the first
// valid; both come into being under a temporary name. Control thread only, but for what says
// otherwise.
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

  // What the tensors are called and how long they are; before the first piece. Out of a worker's
  // Ready.
  void Describe(const msg::Ready& ready);

  // A piece of the checkpoint after piece.round, in order from its first byte. After an error the
  // pieces up to the next first one are passed over, and Save says what went wrong.
  void Add(const msg::StateChunk& piece);
  // To be called on any thread, once, saves in their order: makes the checkpoint valid and removes
  // old ones. Bringing gigabytes to a disk may take longer than anybody waits for a heartbeat. On
  // an error nothing is left of it and the last good one stays.
  std::function<Status()> Save(RoundId round, const JobState& state);
  void Drop(RoundId round);

  struct Loaded {
    RoundId round;
    JobState state;
    std::filesystem::path tensors;
  };
  // The newest one, read once from its first byte to its last and found sound: its values are those
  // whose digest a majority of the members confirmed, under the names and with the shapes of the
  // model, and all of them are numbers. nullopt when there is none. An error is one line, names the
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
