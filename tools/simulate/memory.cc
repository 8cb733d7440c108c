#include "tools/simulate/memory.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/random.h"

namespace lockstep::simulate {
namespace {

constexpr float kSteepest = 16;  // the largest slope of a sample's gradient

}  // namespace

State InitialState(const Layout& layout, std::uint64_t seed) {
  State state;
  RandomStream random(seed);
  for (std::uint64_t i = 0; i < layout.parameter_count(); ++i) {
    state.parameters.push_back(random.NextUniform() - 0.5f);
  }
  for (std::uint32_t t = 1; t <= StateTensors(layout); ++t) {
    TensorOf(state, t).assign(layout.parameter_count(), 0.0f);
  }
  return state;
}

std::uint32_t StateTensors(const Layout& layout) { return layout.rank() > 0 ? 2 : 1; }

std::vector<float>& TensorOf(State& state, std::uint32_t tensor) {
  LOCKSTEP_CHECK(tensor <= 2, "state tensor {}", tensor);
  return tensor == 0 ? state.parameters : tensor == 1 ? state.momentum : state.factors;
}

void AddGradient(const SampleRange& unit, const std::vector<float>& parameters,
                 std::span<float> gradient) {
  const std::uint64_t word = Mix64(unit.from * 31 + unit.to);
  const float size = static_cast<float>(unit.size());
  std::array<float, 64> targets;
  for (std::uint32_t i = 0; i < targets.size(); ++i) {
    targets[i] = static_cast<float>((std::rotr(word, static_cast<int>(i)) & 63) + i % 7) * 0.013f;
  }
  for (std::size_t first = 0; first < gradient.size(); first += targets.size()) {
    const std::size_t count = std::min(targets.size(), gradient.size() - first);
    float* sums = gradient.data() + first;
    const float* at = parameters.data() + first;
    // The values are bounded: where many stale contributions add up, they stay finite.
    for (std::size_t i = 0; i < count; ++i) {
      sums[i] += size * std::clamp(at[i] - targets[i], -kSteepest, kSteepest);
    }
  }
}

void Update(const std::vector<float>& sum, const std::vector<FloatRange>& ranges, float scale,
            float learning_rate, float fraction, float clip_factor, State* state) {
  const float keep = 1.0f - fraction * 0.1f;
  for (const FloatRange& range : ranges) {
    for (std::uint64_t i = range.first; i < range.end(); ++i) {
      const float gradient = sum[i] * scale * clip_factor;
      state->momentum[i] = keep * state->momentum[i] + fraction * gradient;
      state->parameters[i] -= learning_rate * fraction * state->momentum[i];
    }
  }
}

void UpdateFactored(const worker::Factors& factors, const Layout& layout, RoundId round,
                    const std::vector<float>& sum, const std::vector<std::uint32_t>& buckets,
                    float scale, float learning_rate, float fraction, float clip_factor,
                    State* state) {
  std::vector<float> gradient(layout.parameter_count());
  for (const std::uint32_t b : buckets) {
    const FloatRange& bucket = layout.bucket(b);
    const float* sums = sum.data() + layout.InSum(bucket, 0).first;
    const worker::Factors::Known known = factors.KnownIn(round, b, state->factors.data());
    factors.Gradient(known, sums, bucket, gradient.data() + bucket.first);
    factors.Keep(known, sums, state->factors.data());
    Update(gradient, {bucket}, scale, learning_rate, fraction, clip_factor, state);
  }
}

void AddNorms(const Layout& layout, const Slice& slice, std::vector<float>* sum) {
  const FloatRange norms = layout.NormsOf(slice);
  const FloatRange range = layout.InSum(slice.range, 0);
  const std::uint64_t numbers = layout.SumNumbersOfGrain(slice.bucket);
  for (std::uint64_t g = 0; g * 2 < norms.count; ++g) {
    double squares = 0;
    const std::uint64_t from = range.first + g * numbers;
    const std::uint64_t to = std::min(range.end(), from + numbers);
    for (std::uint64_t i = from; i < to; ++i) squares += double{(*sum)[i]} * (*sum)[i];
    std::memcpy(sum->data() + norms.first + 2 * g, &squares, sizeof(squares));
  }
}

float ClipFactor(const Layout& layout, const std::vector<float>& sum, float scale, double clip) {
  if (clip == 0) return 1.0f;
  double squares = 0;
  for (std::uint64_t g = 0; g < layout.grain_count(); ++g) {
    double grain = 0;
    std::memcpy(&grain, sum.data() + layout.norm_offset() + 2 * g, sizeof(grain));
    squares += grain;
  }
  const double norm = std::sqrt(squares) * scale;
  return norm > clip ? static_cast<float>(clip / norm) : 1.0f;
}

// It has four chains side by side, each a bijection in every step: a difference in one word stays
// to the end.
std::uint64_t Digest(const float* floats, std::uint64_t count) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;
  std::array<std::uint64_t, 4> chains = {1, 2, 3, 4};
  std::array<std::uint64_t, 4> words = {};
  const auto mix = [&] {
    for (std::size_t c = 0; c < chains.size(); ++c) {
      chains[c] = (chains[c] ^ words[c]) * kOdd;
      chains[c] ^= chains[c] >> 32;
    }
  };
  constexpr std::uint64_t kFloats = sizeof(words) / sizeof(float);
  const std::uint64_t whole = count / kFloats * kFloats;
  for (std::uint64_t i = 0; i < whole; i += kFloats) {
    std::memcpy(words.data(), floats + i, sizeof(words));
    mix();
  }
  words = {};
  if (count > whole) std::memcpy(words.data(), floats + whole, (count - whole) * sizeof(float));
  mix();
  std::uint64_t digest = count;
  for (const std::uint64_t chain : chains) digest = Mix64(digest ^ chain);
  return digest;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

Memory::Memory(const Layout& l) : layout(l) {
  // Memory that was never written is NaN, so that its use shows.
  const float junk = std::nanf("");
  for (auto& buffer : contributions) buffer.assign(layout.contribution_numbers(), junk);
  if (layout.compressed()) {
    for (auto& buffer : residual) buffer.assign(layout.parameter_count(), 0.0f);
  }
  for (auto& buffer : sums) buffer.assign(layout.sum_floats(), junk);
  for (auto& buffer : taken) buffer.assign(layout.sum_floats(), junk);
  const std::uint32_t tensors = 1 + StateTensors(layout);
  for (auto& buffer : state_out) buffer.assign(tensors * layout.largest_copy(), junk);
  for (std::uint32_t t = 0; t < tensors; ++t) {
    // The rest of the factors' tensor is always empty.
    const bool factors = layout.rank() > 0 && t == tensors - 1;
    TensorOf(state, t).assign(layout.parameter_count(), factors ? 0.0f : junk);
  }
}

std::vector<float>& Memory::At(const BufferId& buffer) {
  switch (buffer.kind) {
    case BufferKind::kContribution:
      return contributions.at(buffer.index);
    case BufferKind::kSum:
      return sums.at(buffer.index);
    case BufferKind::kTaken:
      return taken.at(buffer.index);
    case BufferKind::kStateOut:
      return state_out.at(buffer.index);
    case BufferKind::kState:
      return TensorOf(state, buffer.index);
    case BufferKind::kStaging:
      break;
  }
  auto& floats = staging[buffer];
  if (floats.empty()) floats.assign(layout.contribution_numbers(), std::nanf(""));
  return floats;
}

std::uint32_t& Memory::GenerationOf(const BufferId& buffer) { return generations[buffer]; }

}  // namespace lockstep::simulate
