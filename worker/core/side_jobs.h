// What is done with the state beside training: evaluation on the compute thread while it is idle,
// the checkpoint that this worker was asked to upload, and the digest by which the coordinator
// knows that the checkpoint is what most members have. The first two work on a snapshot; snapshot
// and digest are taken right after the update of the round.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>

#include "worker/core/context.h"

namespace lockstep::worker {

class SideJobs {
 public:
  explicit SideJobs(Context& context) : context_(context) {}

  // The round's update is done and the next one has not begun.
  void OnApplied(const Commit& commit);
  // A checkpoint is made of the state after this commit, which is the present one: tells what it
  // is, and uploads it if this worker is the one that was asked to.
  void OnCheckpoint(const Commit& commit);
  // The state is being read: nothing else than an update in its turn may write there.
  bool ReadsState() const { return !ops_.empty(); }
  // A snapshot is still to be taken: no update may begin.
  bool WaitsForSnapshot() const { return wanted_evaluation_.has_value(); }
  // False when more is asked for than any evaluation has chunks.
  [[nodiscard]] bool OnEvaluate(const Evaluate& order);
  void OnChunkEvaluated(const event::ChunkEvaluated& done);
  void OnChunkUploaded();
  // True when the operation was a snapshot or a digest.
  bool OnOpDone(const event::OpDone& done);
  // `idle`: the compute thread has no units.
  void Update(bool idle);

 private:
  struct Upload {
    RoundId round;
    std::uint64_t op = 0;  // of the snapshot
    std::uint32_t tensor = 0;
    std::uint64_t offset = 0;
    bool complete = false;
  };
  void StartUpload(RoundId round);
  void TakeEvaluationSnapshot();
  void StartChunk();
  void PumpUpload();

  Context& context_;
  std::optional<std::uint32_t> wanted_evaluation_;
  std::uint32_t evaluation_ = 0;  // of the snapshot
  std::uint64_t snapshot_op_ = 0;
  std::set<std::uint64_t> ops_;                     // snapshots and digests that are being taken
  std::map<std::uint64_t, ReplicaDigest> digests_;  // by operation, to be told
  std::deque<Evaluate> orders_;
  std::optional<EvaluationResult> partial_;  // of the first order
  bool chunk_under_way_ = false;
  std::optional<Upload> upload_;
  std::uint32_t chunks_under_way_ = 0;
};

}  // namespace lockstep::worker
