// Evaluation: chunks of the test set, computed on the compute thread while it has no units, with a
// snapshot of the parameters after the round that the coordinator named.
//
// In: commits that name an evaluation, orders, chunks that are done. Out: TakeSnapshot,
// EvaluateChunk, EvaluationResult. An update waits while a snapshot is still to be taken; training
// waits for nothing else here.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>

#include "worker/core/context.h"

namespace lockstep::worker {

class Evaluation {
 public:
  explicit Evaluation(Context& context) : context_(context) {}

  // The round's update is done and the next one has not begun.
  void OnApplied(const msg::Commit& commit);
  // False when more is asked for than any evaluation has chunks.
  [[nodiscard]] bool OnEvaluate(const msg::Evaluate& order);
  void OnChunkEvaluated(const event::ChunkEvaluated& done);
  // True when the operation was its snapshot.
  bool OnOpDone(const event::OpDone& done);
  // `idle`: the compute thread has no units.
  void Update(bool idle);

  // The state is being read: nothing else than an update in its turn may write there.
  bool ReadsState() const { return !snapshots_.empty(); }
  // A snapshot is still to be taken: no update may begin.
  bool WaitsForSnapshot() const { return wanted_.has_value(); }

  void CheckInvariants() const;

 private:
  void TakeSnapshot();
  void StartChunk();

  Context& context_;
  std::optional<std::uint32_t> wanted_;  // its snapshot waits for the chunk under way to end
  std::uint32_t evaluation_ = 0;         // that the snapshot is of; grows
  std::uint64_t snapshot_op_ = 0;        // that takes it
  std::set<std::uint64_t> snapshots_;    // being taken; chunks use the last one only
  std::deque<msg::Evaluate> orders_;     // none for an evaluation before evaluation_
  std::optional<msg::EvaluationResult> partial_;  // of the first order
  bool chunk_under_way_ = false;                  // it reads the snapshot
};

}  // namespace lockstep::worker
