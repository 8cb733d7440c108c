// A simulated worker's memory, with the work of the reduction thread and the optimizer on it. It
// has real floats, so that results can be compared bit for bit.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "worker/core/step_io.h"
#include "worker/memory/factors.h"

namespace lockstep::simulate {

using worker::BufferId;
using worker::BufferKind;
using worker::FloatRange;
using worker::Layout;
using worker::Slice;

// Model state after a round: parameters, one momentum tensor and, where matrices are exchanged as
// factors, the factors.
struct State {
  std::vector<float> parameters;
  std::vector<float> momentum;
  std::vector<float> factors = {};
  bool operator==(const State&) const = default;
};

// The number of tensors of a state after its parameters.
std::uint32_t StateTensors(const Layout& layout);
std::vector<float>& TensorOf(State& state, std::uint32_t tensor);
inline const std::vector<float>& TensorOf(const State& state, std::uint32_t tensor) {
  return TensorOf(const_cast<State&>(state), tensor);
}

State InitialState(const Layout& layout, std::uint64_t seed = 7);

// Adds the gradient sum of a unit to `gradient`.
void AddGradient(const SampleRange& unit, const std::vector<float>& parameters,
                 std::span<float> gradient);

// Makes one update from the sum of the gradients (Layout::sum_floats() floats).
void Update(const std::vector<float>& sum, const std::vector<FloatRange>& ranges, float scale,
            float learning_rate, float fraction, float clip_factor, State* state);

// Makes the same update for some buckets where the sums are of factors.
void UpdateFactored(const worker::Factors& factors, const Layout& layout, RoundId round,
                    const std::vector<float>& sum, const std::vector<std::uint32_t>& buckets,
                    float scale, float learning_rate, float fraction, float clip_factor,
                    State* state);

// Adds sums of squares by grain, as the reduction leaves them behind the sum.
void AddNorms(const Layout& layout, const Slice& slice, std::vector<float>* sum);
float ClipFactor(const Layout& layout, const std::vector<float>& sum, float scale, double clip);

std::uint64_t Digest(const float* floats, std::uint64_t count);

bool SameBits(const std::vector<float>& a, const std::vector<float>& b);

struct Memory {
  explicit Memory(const Layout& layout);

  std::vector<float>& At(const BufferId& buffer);
  std::uint32_t& GenerationOf(const BufferId& buffer);

  const Layout& layout;
  State state;
  std::array<std::vector<float>, worker::kContributionBuffers> contributions;
  std::array<std::vector<float>, worker::kSumBuffers> sums;
  std::array<std::vector<float>, worker::kSumBuffers> taken;
  std::array<std::vector<float>, worker::kStateOutBuffers> state_out;
  std::array<std::vector<float>, 1 + kMaxParts> residual;  // where not all numbers are sent
  std::map<BufferId, std::vector<float>> staging;
  std::map<BufferId, std::uint32_t> generations;
};

}  // namespace lockstep::simulate
