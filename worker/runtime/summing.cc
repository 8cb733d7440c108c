#include "worker/runtime/summing.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "worker/memory/reduce.h"
#include "worker/memory/sparse.h"

namespace lockstep::worker {

bool Summing::Make(const action::Reduce& reduce, const std::vector<OpenSource>& sources,
                   const Slice& slice, bool large) {
  if (few()) return MakeFew(reduce, sources, slice);
  if (buffers_.type() != NumberType::kFp32) return MakeNarrow(reduce, sources, slice);
  return MakePlain(reduce, sources, slice, large);
}

bool Summing::MakePlain(const action::Reduce& reduce, const std::vector<OpenSource>& sources,
                        const Slice& slice, bool large) {
  float* out = buffers_.At(reduce.out);
  const FloatRange at = layout_.InSum(slice.range, 0);
  std::vector<Input> inputs(reduce.inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    inputs[i] = {sources[i].Floats(at.first), reduce.inputs[i].weight};
  }
  return memory_.WeightedSum(inputs, out + at.first, at.count, large);
}

// The squares are of what all members apply, so of rounded sums.
void Summing::MakeSquares(const action::Reduce& reduce, const Slice& slice) {
  if (!reduce.norms || few()) return;
  std::byte* out = buffers_.Data(reduce.out);
  auto* norms =
      reinterpret_cast<double*>(out + layout_.NormsOf(slice).first * layout_.number_bytes());
  const FloatRange range = layout_.InSum(slice.range, 0);
  const std::uint64_t grain = layout_.SumNumbersOfGrain(slice.bucket);
  if (buffers_.type() == NumberType::kFp32) {
    memory_.SumOfSquaresByGrain(reinterpret_cast<const float*>(out) + range.first, range.count,
                                grain, norms);
  } else {
    memory_.SumOfSquaresByGrain(buffers_.type(),
                                reinterpret_cast<const std::uint16_t*>(out) + range.first,
                                range.count, grain, norms);
  }
}

std::vector<std::uint32_t> Summing::NotFinite(const action::Reduce& reduce,
                                              const std::vector<OpenSource>& sources) {
  std::vector<std::uint32_t> inputs;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const bool finite = std::ranges::all_of(reduce.slices, [&](const Slice& slice) {
      const FloatRange at = layout_.InContribution(slice.range);
      return memory_.AllFinite(sources[i].Floats(at.first), at.count);
    });
    if (!finite) inputs.push_back(static_cast<std::uint32_t>(i));
  }
  return inputs;
}

bool Summing::MakeNarrow(const action::Reduce& reduce, const std::vector<OpenSource>& sources,
                         const Slice& slice) {
  auto* out = reinterpret_cast<std::uint16_t*>(buffers_.Data(reduce.out));
  const FloatRange at = layout_.InSum(slice.range, 0);
  std::vector<NarrowInput> inputs(reduce.inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    inputs[i] = {sources[i].Narrow(at.first), reduce.inputs[i].weight};
  }
  const Rounding rounding =
      rounding_seed_ ? RoundingOfSums(*rounding_seed_, reduce.round) : Rounding{};
  return memory_.WeightedSum(buffers_.type(), inputs, out + at.first, at.count, rounding, at.first);
}

// Grain by grain. A number that no contribution has is zero.
bool Summing::MakeFew(const action::Reduce& reduce, const std::vector<OpenSource>& sources,
                      const Slice& slice) {
  const NumberType type = buffers_.type();
  const std::uint64_t number = layout_.number_bytes();
  const std::uint32_t kept = layout_.kept();
  const std::uint32_t entries = layout_.SumEntries(sources.size());
  std::byte* sums = buffers_.Data(reduce.out);
  auto* norms = reinterpret_cast<double*>(sums + layout_.NormsOf(slice).first * number);
  std::uint64_t from = layout_.InContribution(slice.range).first * number;
  std::byte* to = sums + layout_.InSum(slice.range, entries).first * number;
  bool fits = true;
  OpenSource made;
  made.data = sums;
  std::array<float, kGrain> grain;
  for (const FloatRange& range : CutPieces(slice.range, sizeof grain)) {
    grain.fill(0);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      AddSparse(type, kept, sources[i].data + from, reduce.inputs[i].weight, grain.data());
    }
    if (entries > 0) {
      fits = PutNonZero(type, entries, grain.data(), range.count, to) && fits;
    } else if (type == NumberType::kFp32) {
      std::memcpy(to, grain.data(), range.count * number);
    } else {
      fits =
          NarrowSums(type, grain.data(), reinterpret_cast<std::uint16_t*>(to), range.count) && fits;
    }
    if (reduce.norms) {
      if (type != NumberType::kFp32) Widen(made, entries, range, grain.data());
      SumOfSquaresByGrain(grain.data(), range.count, kGrain, norms++);
    }
    from += layout_.NumbersOfGrain(kept) * number;
    to += (entries > 0 ? layout_.NumbersOfGrain(entries) : range.count) * number;
  }
  return fits;
}

void Summing::Widen(const OpenSource& sums, std::uint32_t entries, const FloatRange& range,
                    float* to) const {
  if (entries == 0) {
    worker::Widen(buffers_.type(), sums.Narrow(range.first), to, range.count);
    return;
  }
  const std::byte* from = sums.data + layout_.InSum(range, entries).first * layout_.number_bytes();
  std::array<float, kGrain> grain;
  for (const FloatRange& piece : CutPieces(range, sizeof grain)) {
    grain.fill(0);
    AddSparse(buffers_.type(), entries, from, 1.0f, grain.data());
    std::memcpy(to, grain.data(), piece.count * sizeof(float));
    from += layout_.NumbersOfGrain(entries) * layout_.number_bytes();
    to += piece.count;
  }
}

}  // namespace lockstep::worker
