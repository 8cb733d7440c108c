#include "tools/simulate/memory.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/random.h"

namespace lockstep::simulate {

State InitialState(const Layout& layout) {
  State state;
  RandomStream random(7);
  for (std::uint64_t i = 0; i < layout.parameter_count(); ++i) {
    state.parameters.push_back(random.NextUniform() - 0.5f);
  }
  state.momentum.assign(layout.parameter_count(), 0.0f);
  return state;
}

void AddGradient(const SampleRange& unit, const std::vector<float>& parameters,
                 std::vector<float>* gradient) {
  const std::uint64_t word = Mix64(unit.from * 31 + unit.to);
  const float size = static_cast<float>(unit.size());
  for (std::size_t i = 0; i < gradient->size(); ++i) {
    const std::uint64_t bits = word >> (i % 57) & 63;
    const float target = static_cast<float>(bits + i % 7) * 0.013f;
    (*gradient)[i] += size * (parameters[i] - target);
  }
}

void Update(const std::vector<float>& sum, const std::vector<FloatRange>& ranges, float scale,
            float learning_rate, float clip_factor, State* state) {
  for (const FloatRange& range : ranges) {
    for (std::uint64_t i = range.first; i < range.end(); ++i) {
      const float gradient = sum[i] * scale * clip_factor;
      state->momentum[i] = 0.9f * state->momentum[i] + gradient;
      state->parameters[i] -= learning_rate * state->momentum[i];
    }
  }
}

void AddNorms(const Layout& layout, const Slice& slice, std::vector<float>* sum) {
  const FloatRange norms = layout.NormsOf(slice);
  for (std::uint64_t g = 0; g * 2 < norms.count; ++g) {
    double squares = 0;
    const std::uint64_t from = slice.range.first + g * worker::kGrain;
    const std::uint64_t to = std::min(slice.range.end(), from + worker::kGrain);
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

std::uint64_t Digest(const float* floats, std::uint64_t count) {
  std::uint64_t digest = 1;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, floats + i, sizeof(bits));
    digest = Mix64(digest ^ bits);
  }
  return digest;
}

Memory::Memory(const Layout& l) : layout(l) {
  // What was never written is NaN: using it shows.
  const float junk = std::nanf("");
  for (auto& buffer : contributions) buffer.assign(layout.parameter_count(), junk);
  for (auto& buffer : sums) buffer.assign(layout.sum_floats(), junk);
  for (auto& buffer : state_out) buffer.assign(2 * layout.largest_bucket(), junk);
  state.parameters.assign(layout.parameter_count(), junk);
  state.momentum.assign(layout.parameter_count(), junk);
}

std::vector<float>& Memory::At(const BufferId& buffer) {
  switch (buffer.kind) {
    case BufferKind::kContribution:
      return contributions.at(buffer.index);
    case BufferKind::kSum:
      return sums.at(buffer.index);
    case BufferKind::kStateOut:
      return state_out.at(buffer.index);
    case BufferKind::kState:
      LOCKSTEP_CHECK(buffer.index < 2, "state tensor {}", buffer.index);
      return buffer.index == 0 ? state.parameters : state.momentum;
    case BufferKind::kStaging:
      break;
  }
  auto& floats = staging[buffer];
  if (floats.empty()) floats.assign(layout.parameter_count(), std::nanf(""));
  return floats;
}

std::uint32_t& Memory::GenerationOf(const BufferId& buffer) { return generations[buffer]; }

}  // namespace lockstep::simulate
