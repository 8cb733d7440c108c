// A checkpoint, as a member sees it. After the round of which the coordinator makes one, every
// member says the digest of its state. So the coordinator knows that the checkpoint is what most
// members have. The member that was asked to uploads it, out of a snapshot.
//
// In: commits that name a writer, snapshots and digests that are taken, chunks that have left. Out:
// DigestReplica, TakeSnapshot, UploadChunk, ReplicaDigest. At most a window of chunks is under way.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "worker/core/context.h"

namespace lockstep::worker {

class CheckpointUpload {
 public:
  explicit CheckpointUpload(Context& context) : context_(context) {}

  // The state is that after this commit: the update is done, and the next one has not begun.
  void OnCheckpoint(const msg::Commit& commit);
  // The same where nobody has the whole state: the snapshot's operation, if this worker is to write
  // it. It is taken when the state has been gathered (holdings.h).
  std::optional<std::uint64_t> OnGather(const msg::Commit& commit);
  // That operation will not be.
  void OnNotGathered(std::uint64_t op);
  void OnChunkUploaded();
  // True when the operation was a snapshot or a digest.
  bool OnOpDone(const event::OpDone& done);
  void Update();

  // The state is being read: nothing else than an update in its turn may write there.
  bool ReadsState() const { return !digests_.empty() || !snapshots_.empty(); }

  void CheckInvariants() const;

 private:
  // `tensor` and `offset` say what is sent next; `complete` when all was.
  struct Upload {
    RoundId round;
    std::uint64_t op = 0;  // of the snapshot
    std::uint32_t tensor = 0;
    std::uint64_t offset = 0;
    bool complete = false;
  };

  Context& context_;
  std::map<std::uint64_t, msg::ReplicaDigest> digests_;  // being taken, by operation
  std::set<std::uint64_t> snapshots_;  // being taken; only the last one is uploaded
  std::optional<Upload> upload_;
  std::uint32_t chunks_under_way_ = 0;  // also of an upload that gave way
};

}  // namespace lockstep::worker
