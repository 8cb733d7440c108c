#include "tools/simulate/real_numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <set>

#include "base/check.h"
#include "worker/memory/sparse.h"

namespace lockstep::simulate {

using worker::event::OpDone;
namespace action = worker::action;

namespace {

bool IsFinite(float value) { return std::isfinite(value); }

}  // namespace

void RealNumbers::Append(const worker::BufferRange& range, std::vector<std::byte>* bytes) {
  const float* from = memory_->At(range.buffer).data() + range.range.first;
  const auto* raw = reinterpret_cast<const std::byte*>(from);
  bytes->insert(bytes->end(), raw, raw + range.range.count * sizeof(float));
}

void RealNumbers::StoreInline(const action::StoreInline& a) {
  LOCKSTEP_CHECK(a.bytes.size() == a.to.range.count * sizeof(float), "inlined bytes");
  std::memcpy(memory_->At(a.to.buffer).data() + a.to.range.first, a.bytes.data(), a.bytes.size());
  ++counts_->inlined;
}

void RealNumbers::TakePiece(Numbers& server, const worker::BufferRange& from,
                            const worker::BufferRange& to) {
  LOCKSTEP_CHECK(from.range.count == to.range.count, "a piece of another length");
  const auto& source = static_cast<RealNumbers&>(server).memory_->At(from.buffer);
  std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from.range.first), to.range.count,
              memory_->At(to.buffer).begin() + static_cast<std::ptrdiff_t>(to.range.first));
  ++counts_->fetched;
}

void RealNumbers::Initialize(bool parameters) {
  if (!parameters) {
    for (std::uint32_t t = 1; t <= StateTensors(memory_->layout); ++t) {
      TensorOf(memory_->state, t).assign(memory_->layout.parameter_count(), 0.0f);
    }
    return;
  }
  memory_->state = truth_->own_parameters() ? truth_->Draw(self_) : InitialState(memory_->layout);
}

void RealNumbers::ReadParameters(std::uint64_t offset, std::span<std::byte> bytes) {
  const std::vector<float>& from = memory_->state.parameters;
  LOCKSTEP_CHECK(offset + bytes.size() <= from.size() * sizeof(float), "parameters");
  std::memcpy(bytes.data(), reinterpret_cast<const std::byte*>(from.data()) + offset, bytes.size());
}

void RealNumbers::StoreState(std::uint32_t tensor, std::uint64_t offset,
                             std::span<const std::byte> bytes) {
  std::vector<float>& to = TensorOf(memory_->state, tensor);
  LOCKSTEP_CHECK(offset + bytes.size() <= to.size() * sizeof(float), "state");
  std::memcpy(reinterpret_cast<std::byte*>(to.data()) + offset, bytes.data(), bytes.size());
}

void RealNumbers::ReadCheckpoint(std::uint32_t tensor, std::uint64_t offset,
                                 std::span<std::byte> bytes) {
  const std::vector<float>& from = TensorOf(checkpoint_, tensor);
  LOCKSTEP_CHECK(offset + bytes.size() <= from.size() * sizeof(float), "state");
  std::memcpy(bytes.data(), reinterpret_cast<const std::byte*>(from.data()) + offset, bytes.size());
}

void RealNumbers::StartWork(const action::StartWork& work) {
  work_ = work;
  part_begun_ = {};
  if (residual_) residual_->OnStart(work.applied, work.copied);
}

void RealNumbers::BeginRun() {
  run_parameters_ = Computed().parameters;
  if (factor_form_ != nullptr && std::ranges::none_of(part_begun_, std::identity())) {
    factor_form_->Begin(work_.round, Computed().factors.data());
    work_factors_ = Computed().factors;
  }
}

std::span<float> RealNumbers::Gradient(PartIndex part) {
  if (residual_) return {residual_->Gradient(part), memory_->layout.parameter_count()};
  return memory_->At(work_.parts[part.value]);
}

void RealNumbers::FinishRun(const worker::UnitQueue::Take& take, std::span<const Unit> units,
                            bool is_void) {
  const std::span<float> gradient = Gradient(take.part);
  if (!part_begun_[take.part.value]) {
    std::ranges::fill(gradient, 0.0f);
    if (residual_) residual_->Begin(take.part);
    sent_buckets_ = 0;
    sends_numbers_ = true;
  }
  part_begun_[take.part.value] = true;
  if (is_void) return;
  if (!SameBits(run_parameters_, Computed().parameters)) {
    truth_->Complain(self_, "the parameters changed under a run");
  }
  for (const Unit& unit : units) {
    AddGradient(unit.range, run_parameters_, gradient);
    for (const std::uint64_t sample : poison_.samples) {
      if (sample < unit.range.from || sample >= unit.range.to) continue;
      gradient[sample % gradient.size()] = std::nanf("");
    }
  }
}

Digest128 RealNumbers::Audit(const Unit& unit) {
  std::vector<float> gradient(memory_->layout.parameter_count());
  AddGradient(unit.range, run_parameters_, gradient);
  return DigestOf(gradient);
}

void RealNumbers::BucketsFinal(const worker::UnitQueue::Take& take, std::uint32_t buckets) {
  if (!residual_) return;
  const Layout& layout = memory_->layout;
  const std::span<const float> gradient = Gradient(take.part);
  if (sent_buckets_ == 0) gradient_.assign(gradient.begin(), gradient.end());
  std::vector<float>& to = memory_->At(work_.parts[take.part.value]);
  for (; sent_buckets_ < buckets; ++sent_buckets_) {
    const FloatRange& bucket = layout.bucket(sent_buckets_);
    const bool fits =
        residual_->Send({work_.work, take.part}, bucket.first, bucket.count, *form_,
                        reinterpret_cast<std::byte*>(&to[layout.InContribution(bucket).first]));
    sends_numbers_ = fits && sends_numbers_;
  }
}

std::vector<float> RealNumbers::Sent(PartIndex part) {
  const Layout& layout = memory_->layout;
  const std::vector<float>& contribution = memory_->At(work_.parts[part.value]);
  if (layout.kept() == 0) return contribution;
  std::vector<float> sent(layout.parameter_count() + worker::kGrain);
  for (std::uint32_t b = 0; b < layout.bucket_count(); ++b) {
    AddEntries(contribution, layout.kept(), layout.bucket(b), 1, &sent);
  }
  sent.resize(layout.parameter_count());
  return sent;
}

bool RealNumbers::Seal(const worker::UnitQueue::Take& take) {
  BucketsFinal(take, memory_->layout.bucket_count());
  const std::vector<float> sent = Sent(take.part);
  if (residual_ && !old())
    truth_->OnSent(self_, work_.round, take.part, gradient_, sent, work_factors_);
  truth_->OnSealed(self_, work_.round, take.part, sent, Computed());
  // Rates may diverge, or a sample be poisoned; factors of values that are no numbers are not made.
  if (factor_form_ != nullptr && !sends_numbers_) return false;
  return !poison_.looked_for || std::ranges::all_of(sent, IsFinite);
}

void RealNumbers::AddEntries(const std::vector<float>& from, std::uint32_t entries,
                             const FloatRange& slice, float weight, std::vector<float>* to) const {
  const Layout& layout = memory_->layout;
  const float* block = from.data() + layout.InSum(slice, entries).first;
  for (std::uint64_t at = slice.first; at < slice.end(); at += worker::kGrain) {
    worker::AddSparse(worker::NumberType::kFp32, entries, reinterpret_cast<const std::byte*>(block),
                      weight, to->data() + at);
    block += layout.NumbersOfGrain(entries);
  }
}

void RealNumbers::ReduceSparse(const action::Reduce& a, OpDone* done) {
  const Layout& layout = memory_->layout;
  const std::uint32_t entries = layout.SumEntries(a.inputs.size());
  std::vector<float>& out = memory_->At(a.out);
  std::vector<float> input(layout.contribution_numbers());
  std::vector<float> sum(layout.sum_floats() + worker::kGrain);
  for (const action::ReduceInput& in : a.inputs) {
    for (const Slice& slice : a.slices) {
      if (!Read(in.source, layout.InContribution(slice.range), &input)) done->torn = true;
      AddEntries(input, layout.kept(), slice.range, in.weight, &sum);
    }
  }
  const auto copy = [&](const FloatRange& range) {
    std::copy_n(&sum[range.first], range.count, &out[range.first]);
  };
  for (const Slice& slice : a.slices) {
    if (a.norms) {
      AddNorms(layout, slice, &sum);
      copy(layout.NormsOf(slice));
    }
    if (entries == 0) {
      copy(slice.range);
      continue;
    }
    float* to = &out[layout.InSum(slice.range, entries).first];
    for (const FloatRange& grain : worker::CutPieces(slice.range, worker::kGrain * sizeof(float))) {
      worker::PutNonZero(worker::NumberType::kFp32, entries, &sum[grain.first], grain.count,
                         reinterpret_cast<std::byte*>(to));
      to += layout.NumbersOfGrain(entries);
    }
  }
}

bool RealNumbers::Read(const worker::Source& source, const FloatRange& range,
                       std::vector<float>* to) {
  Memory* memory = memory_.get();
  if (source.peer) {
    const auto mapped = mapped_.find(*source.peer);
    LOCKSTEP_CHECK(mapped != mapped_.end(), "reads a peer that is not mapped");
    memory = mapped->second.get();
    if (memory->GenerationOf(source.buffer) != source.generation) return false;
    ++counts_->read_in_place;
  }
  const auto& from = memory->At(source.buffer);
  std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(range.first), range.count,
              to->begin() + static_cast<std::ptrdiff_t>(range.first));
  return true;
}

void RealNumbers::Run(const action::Reduce& a, OpDone* done) {
  if (memory_->layout.kept() > 0) return ReduceSparse(a, done);
  std::vector<float>& out = memory_->At(a.out);
  std::vector<float> input(out.size());
  bool first = true;
  for (const action::ReduceInput& in : a.inputs) {
    for (const Slice& slice : a.slices) {
      const FloatRange range = memory_->layout.InSum(slice.range, 0);
      if (!Read(in.source, range, &input)) done->torn = true;
      for (std::uint64_t i = range.first; i < range.end(); ++i) {
        const float term = in.weight * input[i];
        out[i] = first ? term : out[i] + term;
      }
    }
    first = false;
  }
  const auto finite = [&](const Slice& slice, const std::vector<float>& values) {
    const FloatRange range = memory_->layout.InSum(slice.range, 0);
    const auto from = values.begin() + static_cast<std::ptrdiff_t>(range.first);
    return std::all_of(from, from + static_cast<std::ptrdiff_t>(range.count), IsFinite);
  };
  for (const Slice& slice : a.slices) {
    if (a.norms) AddNorms(memory_->layout, slice, &out);
    if (finite(slice, out)) continue;
    for (std::uint32_t i = 0; i < a.inputs.size(); ++i) {
      const FloatRange range = memory_->layout.InSum(slice.range, 0);
      if (!Read(a.inputs[i].source, range, &input)) done->torn = true;
      if (!finite(slice, input)) done->not_finite.push_back(i);
    }
  }
}

void RealNumbers::Run(const action::CopySums& a, OpDone* done) {
  for (const action::SourceRange& from : a.from) {
    if (!Read(from.source, from.range, &memory_->At(a.to))) done->torn = true;
  }
}

void RealNumbers::Run(const action::UpdateHeld& a, OpDone*) {
  std::vector<float>& out = memory_->At(a.sums);
  const std::vector<float> sum = out;
  State state{memory_->At(a.from), memory_->state.momentum};
  state.parameters.resize(memory_->layout.parameter_count());
  const float factor = ClipFactor(memory_->layout, sum, a.scale, a.clip);
  Update(sum, a.ranges, a.scale, a.learning_rate, a.fraction, factor, &state);
  memory_->state.momentum = state.momentum;
  for (const FloatRange& range : a.ranges) {
    const auto first = static_cast<std::ptrdiff_t>(range.first);
    std::copy_n(state.parameters.begin() + first, range.count, out.begin() + first);
  }
  if (!old()) truth_->OnHeld(self_, a.round, a.attempt, a.ranges, state);
}

void RealNumbers::Run(const action::TakeParameters& a, OpDone* done) {
  for (const action::SourceRange& from : a.from) {
    if (!Read(from.source, from.range, &memory_->state.parameters)) done->torn = true;
  }
  const FloatRange& bucket = memory_->layout.bucket(a.digest_bucket);
  done->digest = Digest(memory_->state.parameters.data() + bucket.first, bucket.count);
}

// Its use shows.
void RealNumbers::DropHeldState(const action::DropHeldState& a) {
  for (const FloatRange& range : a.ranges) {
    std::fill_n(memory_->state.momentum.begin() + static_cast<std::ptrdiff_t>(range.first),
                range.count, std::nanf(""));
  }
}

void RealNumbers::GiveBack(const action::GiveBack& a) {
  auto& numbers = memory_->At(a.buffer);
  std::size_t at = 0;
  const auto drop = [&](std::size_t to) {
    for (; at < to; ++at) numbers[at] = std::nanf("");
  };
  for (const FloatRange& range : a.kept) {
    drop(range.first);
    at = range.end();
  }
  drop(numbers.size());
}

void RealNumbers::Run(const action::Apply& a, OpDone* done) {
  const Layout& layout = memory_->layout;
  std::vector<float> sum(layout.sum_floats() + worker::kGrain, 0.0f);
  const std::uint32_t entries = layout.SumEntries(a.parts);
  std::vector<float> read(layout.sum_floats());
  for (const action::SourceRange& from : a.slices) {
    const FloatRange range = layout.InSum(from.range, entries);
    if (!Read(from.source, range, entries > 0 ? &read : &sum)) done->torn = true;
    if (entries > 0) AddEntries(read, entries, from.range, 1, &sum);
  }
  for (const action::SourceRange& from : a.norms) {
    if (!Read(from.source, from.range, &sum)) done->torn = true;
  }
  std::vector<FloatRange> ranges;
  std::uint64_t floats = 0;
  for (const action::SourceRange& slice : a.slices) {
    ranges.push_back(slice.range);
    floats += slice.range.count;
  }
  const float factor = ClipFactor(memory_->layout, sum, a.scale, a.clip);
  if (layout.rank() > 0) {
    std::set<std::uint32_t> buckets;
    for (const FloatRange& range : ranges) buckets.insert(layout.BucketOf(range.first));
    UpdateFactored(truth_->factors(), layout, a.round, sum, {buckets.begin(), buckets.end()},
                   a.scale, a.learning_rate, a.fraction, factor, &memory_->state);
  } else {
    Update(sum, ranges, a.scale, a.learning_rate, a.fraction, factor, &memory_->state);
  }
  const FloatRange& bucket = memory_->layout.bucket(a.digest_bucket);
  done->digest = Digest(memory_->state.parameters.data() + bucket.first, bucket.count);
  if (done->torn || floats < memory_->layout.parameter_count()) return;
  if (!old()) truth_->OnApplied(self_, a.round, a.attempt, memory_->state);
}

void RealNumbers::Run(const action::CopyState& a, OpDone*) {
  const FloatRange bucket = memory_->layout.copy(a.bucket);
  auto& out = memory_->At(a.to);
  const auto first = static_cast<std::ptrdiff_t>(bucket.first);
  const auto apart = static_cast<std::ptrdiff_t>(memory_->layout.largest_copy());
  for (std::uint32_t t = 0; t <= StateTensors(memory_->layout); ++t) {
    for (const FloatRange& range :
         memory_->layout.InStateTensor(t, StateTensors(memory_->layout), bucket)) {
      const auto at = static_cast<std::ptrdiff_t>(range.first);
      std::copy_n(TensorOf(memory_->state, t).begin() + at, range.count,
                  out.begin() + t * apart + (at - first));
    }
  }
}

void RealNumbers::Run(const action::DigestState&, OpDone* done) {
  const auto& p = memory_->state.parameters;
  done->text = fmt::format("{:016x}", Digest(p.data(), p.size()));
}

void RealNumbers::Run(const action::DigestReplica&, OpDone* done) {
  DigestStream stream;
  for (std::uint32_t t = 0; t <= StateTensors(memory_->layout); ++t) {
    stream.Update(std::as_bytes(std::span(TensorOf(memory_->state, t))));
  }
  done->replica = stream.Digest();
}

}  // namespace lockstep::simulate
