// The memory of a simulated worker, and the operations on it: real floats where results are
// compared, only sizes where only times matter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "worker/core/step_io.h"
#include "worker/core/unit_queue.h"

namespace lockstep::simulate {

class Numbers {
 public:
  virtual ~Numbers() = default;

  // Appends the bytes of a message that leaves.
  virtual void Append(const worker::BufferRange& range, std::vector<std::byte>* bytes) = 0;
  virtual void StoreInline(const worker::action::StoreInline& a) = 0;
  // Takes a fetched piece, with the server's memory as it is when it arrives.
  virtual void TakePiece(Numbers& server, const worker::BufferRange& from,
                         const worker::BufferRange& to) = 0;
  virtual void OpenBlock(const worker::BufferId& buffer, std::uint32_t generation) = 0;
  // The peer's memory may be read from here on; it outlives the peer.
  virtual void Map(const MemberId& peer, const std::shared_ptr<Numbers>& memory) = 0;
  virtual void Unmap(const MemberId& peer) = 0;

  // False: the parameters have come, and the rest of the state is as at a job's beginning.
  virtual void Initialize(bool parameters) = 0;
  // Reads the parameters of a worker that begins with them; `offset` in bytes.
  virtual void ReadParameters(std::uint64_t offset, std::span<std::byte> bytes) = 0;
  // The job begins, with the parameters of one worker.
  virtual void OnBegun() {}
  // A chunk of a checkpoint comes in, or goes out of the snapshot; `offset` in bytes.
  virtual void StoreState(std::uint32_t tensor, std::uint64_t offset,
                          std::span<const std::byte> bytes) = 0;
  virtual void ReadCheckpoint(std::uint32_t tensor, std::uint64_t offset,
                              std::span<std::byte> bytes) = 0;
  virtual void StartWork(const worker::action::StartWork& work) = 0;
  // For the compute thread: it reads the parameters now, and adds the run when it ends.
  virtual void BeginRun() = 0;
  virtual void FinishRun(const worker::UnitQueue::Take& take, std::span<const Unit> units,
                         bool is_void) = 0;
  // Of the gradient of this unit alone, with the parameters that BeginRun has read.
  virtual Digest128 Audit(const Unit& unit) = 0;
  // Owners are about to hear that the first so many buckets of a part are final.
  virtual void BucketsFinal(const worker::UnitQueue::Take& take, std::uint32_t buckets) = 0;
  // False: the values were checked, and one is not a number.
  virtual bool Seal(const worker::UnitQueue::Take& take) = 0;

  // Operations; each stores its result in `done`.
  virtual void Run(const worker::action::Reduce& a, worker::event::OpDone* done) = 0;
  virtual void Run(const worker::action::CopySums& a, worker::event::OpDone* done) = 0;
  virtual void Run(const worker::action::UpdateHeld& a, worker::event::OpDone* done) = 0;
  virtual void Run(const worker::action::TakeParameters& a, worker::event::OpDone* done) = 0;
  virtual void Run(const worker::action::Apply& a, worker::event::OpDone* done) = 0;
  virtual void Run(const worker::action::CopyState& a, worker::event::OpDone* done) = 0;
  virtual void Run(const worker::action::TakeSnapshot& a, worker::event::OpDone* done) = 0;
  virtual void Run(const worker::action::DigestState& a, worker::event::OpDone* done) = 0;
  virtual void Run(const worker::action::DigestReplica& a, worker::event::OpDone* done) = 0;

  virtual void DropHeldState(const worker::action::DropHeldState& a) = 0;
  virtual void GiveBack(const worker::action::GiveBack& a) = 0;
  // The worker reports that it has applied this attempt.
  virtual void OnSaidApplied(RoundId round, Attempt attempt) = 0;
  // The worker reports that it has caught up and is level before round `next`.
  virtual void OnLevel(RoundId next) = 0;
  // The parameters and the optimizer's state are those of `before`, of the same process.
  virtual void TakeOver(const Numbers& before) { (void)before; }
  // The next coordinator goes on from them, before round `next`; with optimizer.replicas, from
  // those in `ranges`.
  virtual void OnHeld(RoundId next, const std::vector<worker::FloatRange>& ranges) {
    (void)next;
    (void)ranges;
  }
};

// Has sizes only. The digest of the parameters is the number of the last round.
class NoNumbers final : public Numbers {
 public:
  // `number_bytes`: Layout::number_bytes.
  explicit NoNumbers(std::uint64_t number_bytes = sizeof(float)) : number_bytes_(number_bytes) {}
  void Append(const worker::BufferRange& range, std::vector<std::byte>* bytes) override {
    bytes->resize(bytes->size() + range.range.count * number_bytes_);
  }
  void StoreInline(const worker::action::StoreInline&) override {}
  void TakePiece(Numbers&, const worker::BufferRange&, const worker::BufferRange&) override {}
  void OpenBlock(const worker::BufferId&, std::uint32_t) override {}
  void Map(const MemberId&, const std::shared_ptr<Numbers>&) override {}
  void Unmap(const MemberId&) override {}
  void Initialize(bool) override {}
  void ReadParameters(std::uint64_t, std::span<std::byte>) override {}
  void StoreState(std::uint32_t, std::uint64_t, std::span<const std::byte>) override {}
  void ReadCheckpoint(std::uint32_t, std::uint64_t, std::span<std::byte>) override {}
  void StartWork(const worker::action::StartWork&) override {}
  void BeginRun() override {}
  void FinishRun(const worker::UnitQueue::Take&, std::span<const Unit>, bool) override {}
  Digest128 Audit(const Unit& unit) override { return {unit.range.from, unit.range.to}; }
  void BucketsFinal(const worker::UnitQueue::Take&, std::uint32_t) override {}
  bool Seal(const worker::UnitQueue::Take&) override { return true; }
  void Run(const worker::action::Reduce&, worker::event::OpDone*) override {}
  void Run(const worker::action::CopySums&, worker::event::OpDone*) override {}
  void Run(const worker::action::UpdateHeld&, worker::event::OpDone*) override {}
  void Run(const worker::action::TakeParameters& a, worker::event::OpDone* done) override {
    done->digest = a.round.value;
  }
  void DropHeldState(const worker::action::DropHeldState&) override {}
  void GiveBack(const worker::action::GiveBack&) override {}
  void Run(const worker::action::Apply& a, worker::event::OpDone* done) override {
    done->digest = a.round.value;
  }
  void Run(const worker::action::CopyState&, worker::event::OpDone*) override {}
  void Run(const worker::action::TakeSnapshot&, worker::event::OpDone*) override {}
  void Run(const worker::action::DigestState&, worker::event::OpDone* done) override {
    done->text = "simulated";
  }
  // The digest of the one number that such a worker's checkpoint has.
  void Run(const worker::action::DigestReplica&, worker::event::OpDone* done) override {
    done->replica = DigestOf(std::vector<float>(1));
  }
  void OnSaidApplied(RoundId, Attempt) override {}
  void OnLevel(RoundId) override {}

 private:
  const std::uint64_t number_bytes_;
};

}  // namespace lockstep::simulate
