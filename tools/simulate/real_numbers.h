// A trivial model with real floats; every result is compared with the truth.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "tools/simulate/memory.h"
#include "tools/simulate/numbers.h"
#include "tools/simulate/truth.h"
#include "worker/memory/residual.h"

namespace lockstep::simulate {

class RealNumbers final : public Numbers {
 public:
  // Counts of what happened, for tests that require it.
  struct Counts {
    std::uint64_t fetched = 0;        // pieces
    std::uint64_t inlined = 0;        // pieces
    std::uint64_t read_in_place = 0;  // ranges of mapped blocks
  };

  // Samples, by their place in an epoch, whose gradient is not a number.
  struct Poison {
    std::vector<std::uint64_t> samples;
    bool looked_for = false;  // found before a part is sealed; else the worker that sums finds it
  };

  RealNumbers(const MemberId& self, Truth* truth, Counts* counts)
      : RealNumbers(self, truth, counts, {}) {}
  RealNumbers(const MemberId& self, Truth* truth, Counts* counts, Poison poison)
      : poison_(std::move(poison)),
        self_(self),
        truth_(truth),
        counts_(counts),
        memory_(std::make_shared<Memory>(truth->layout())) {
    auto& [kept, first, second] = memory_->residual;
    if (memory_->layout.compressed()) {
      residual_.emplace(kept.data(), std::array{first.data(), second.data()}, kept.size());
    }
    if (memory_->layout.rank() > 0) {
      auto form = std::make_unique<worker::FactorForm>(memory_->layout, truth_->factors());
      factor_form_ = form.get();
      form_ = std::move(form);
    } else if (residual_) {
      form_ =
          std::make_unique<worker::LargestOnly>(worker::NumberType::kFp32, memory_->layout.kept());
    }
  }

  void Append(const worker::BufferRange& range, std::vector<std::byte>* bytes) override;
  void StoreInline(const worker::action::StoreInline& a) override;
  void TakePiece(Numbers& server, const worker::BufferRange& from,
                 const worker::BufferRange& to) override;
  void OpenBlock(const BufferId& buffer, std::uint32_t generation) override {
    memory_->GenerationOf(buffer) = generation;
  }
  void Map(const MemberId& peer, const std::shared_ptr<Numbers>& memory) override {
    mapped_[peer] = static_cast<const RealNumbers&>(*memory).memory_;
  }
  void Unmap(const MemberId& peer) override { mapped_.erase(peer); }

  void Initialize(bool parameters) override;
  void ReadParameters(std::uint64_t offset, std::span<std::byte> bytes) override;
  void OnBegun() override { truth_->OnBegun(self_, memory_->state); }
  void StoreState(std::uint32_t tensor, std::uint64_t offset,
                  std::span<const std::byte> bytes) override;
  void ReadCheckpoint(std::uint32_t tensor, std::uint64_t offset,
                      std::span<std::byte> bytes) override;
  void StartWork(const worker::action::StartWork& work) override;
  void BeginRun() override;
  Digest128 Audit(const Unit& unit) override;
  void FinishRun(const worker::UnitQueue::Take& take, std::span<const Unit> units,
                 bool is_void) override;
  void BucketsFinal(const worker::UnitQueue::Take& take, std::uint32_t buckets) override;
  bool Seal(const worker::UnitQueue::Take& take) override;

  void Run(const worker::action::Reduce& a, worker::event::OpDone* done) override;
  void Run(const worker::action::CopySums& a, worker::event::OpDone* done) override;
  void Run(const worker::action::UpdateHeld& a, worker::event::OpDone* done) override;
  void Run(const worker::action::TakeParameters& a, worker::event::OpDone* done) override;
  void DropHeldState(const worker::action::DropHeldState& a) override;
  void GiveBack(const worker::action::GiveBack& a) override;
  void Run(const worker::action::Apply& a, worker::event::OpDone* done) override;
  void Run(const worker::action::CopyState& a, worker::event::OpDone* done) override;
  void Run(const worker::action::TakeSnapshot& a, worker::event::OpDone*) override {
    if (a.kind == worker::action::SnapshotKind::kCompute) copy_ = memory_->state;
    if (a.kind != worker::action::SnapshotKind::kCheckpoint) return;
    checkpoint_ = memory_->state;
    checkpoint_.parameters = memory_->At(a.parameters);
    checkpoint_.parameters.resize(memory_->layout.parameter_count());
  }
  void Run(const worker::action::DigestState& a, worker::event::OpDone* done) override;
  void Run(const worker::action::DigestReplica& a, worker::event::OpDone* done) override;
  void OnSaidApplied(RoundId round, Attempt attempt) override {
    if (old()) return;
    truth_->OnApplied(self_, round, attempt, memory_->state);
    truth_->OnSaidApplied(self_, round, attempt);
  }
  void OnLevel(RoundId next) override { truth_->OnLevel(self_, next, memory_->state); }
  void TakeOver(const Numbers& before) override {
    memory_->state = static_cast<const RealNumbers&>(before).memory_->state;
  }
  void OnHeld(RoundId next, const std::vector<FloatRange>& ranges) override {
    truth_->OnHolds(self_, next, memory_->state, ranges);
  }

 private:
  bool old() const { return truth_->IsOld(began_after_); }
  // The state with which the work is computed.
  const State& Computed() const { return work_.on_copy ? copy_ : memory_->state; }
  // False when it is torn.
  bool Read(const worker::Source& source, const FloatRange& range, std::vector<float>* to);

  // The place where the gradient of the part is summed.
  std::span<float> Gradient(PartIndex part);
  // The contents of the contribution, a number for each parameter, or for each factor.
  std::vector<float> Sent(PartIndex part);
  // Adds sums, or contributions, of so many entries for a grain from `from`, times `weight`, to
  // `to`, which has kGrain numbers more than the parameters.
  void AddEntries(const std::vector<float>& from, std::uint32_t entries, const FloatRange& slice,
                  float weight, std::vector<float>* to) const;
  void ReduceSparse(const worker::action::Reduce& a, worker::event::OpDone* done);

  const Poison poison_;
  const MemberId self_;
  Truth* truth_;
  const std::uint32_t began_after_ = truth_->crashes();
  Counts* counts_;
  std::shared_ptr<Memory> memory_;
  std::map<MemberId, std::shared_ptr<Memory>> mapped_;
  worker::action::StartWork work_;
  std::array<bool, kMaxParts> part_begun_{};
  std::optional<worker::Residual> residual_;  // where not all numbers are sent
  std::unique_ptr<worker::SentForm> form_;
  worker::FactorForm* factor_form_ = nullptr;  // with factors: form_
  bool sends_numbers_ = true;                  // in the present part
  std::uint32_t sent_buckets_ = 0;             // of the present part
  std::vector<float> gradient_;                // of the present part, as a whole
  std::vector<float> work_factors_;            // of the state with which the work is computed
  State copy_;
  State checkpoint_;
  std::vector<float> run_parameters_;  // at the run's beginning
};

}  // namespace lockstep::simulate
