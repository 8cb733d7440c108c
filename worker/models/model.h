// A model: a flat FP32 parameter vector, and code that turns samples into loss and gradient.
//
// Memory. Parameters and gradients are memory of the model's Compute (plain memory for the CPU),
// owned by the caller. A model keeps its scratch memory between calls; its size depends on the
// model, not on the batch: samples are computed in sub-batches of a fixed size. Threads. One thread
// at a time; only the cancel flag may be set by another.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/job_config.h"
#include "base/result.h"
#include "worker/compute/compute.h"
#include "worker/data/batch.h"

namespace lockstep::worker {

struct ModelSpec {
  ModelSection config;
  ImageShape input;
  std::uint32_t classes = 0;
};

// A part of the flat parameter vector, for checkpoints and for reports by layer.
struct NamedTensor {
  std::string name;  // "conv1.weight"
  std::vector<std::uint64_t> shape;
  std::uint64_t offset = 0;  // floats
  std::uint64_t count = 0;
};

// Consecutive parameters whose gradients become final together.
struct ParameterBlock {
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
};

// Called from within TrainUnit: no operation that is asked for from here on writes the gradient of
// this block (index into Model::blocks) in this unit. Each block once, in finish order.
class BackwardObserver {
 public:
  virtual ~BackwardObserver() = default;
  virtual void BlockFinal(std::uint32_t block) = 0;
  // Once, after the last BlockFinal: the rest of the unit is to wait for the device. A device with
  // memory of its own is only then at work on what was reported.
  virtual void AllAsked() {}
};

struct TrainResult {
  double loss_sum = 0;
  std::uint64_t samples = 0;
  bool cancelled = false;  // then the accumulator holds a part of the unit and is void
};

struct EvalResult {
  double loss_sum = 0;
  std::uint64_t correct = 0;
  std::uint64_t samples = 0;
};

class Model {
 public:
  virtual ~Model() = default;

  virtual std::uint64_t parameter_count() const = 0;
  // In model order; together they are the parameter vector.
  virtual const std::vector<NamedTensor>& tensors() const = 0;
  // In model order, without gaps.
  virtual const std::vector<ParameterBlock>& blocks() const = 0;
  // Indices into blocks(), in the order in which the backward pass finishes them.
  virtual const std::vector<std::uint32_t>& finish_order() const = 0;

  // He's uniform initialization before ReLU, Glorot's for the last layer, biases zero. Host memory.
  // The same bits on every machine.
  virtual void InitParameters(std::uint64_t seed, std::span<float> parameters) const = 0;

  // Adds the SUM of the gradients over the batch's samples to `gradient`; an empty batch adds
  // nothing. With dropout. What is added is the same whatever other units are computed before or
  // after, up to the additions into `gradient`. `observer` may be null. `cancelled` is looked at
  // between layers and slices of layers.
  virtual TrainResult TrainUnit(const float* parameters, float* gradient, const Batch& batch,
                                BackwardObserver* observer, const std::atomic<bool>& cancelled) = 0;

  // Begins to bring the first samples of a training batch to the device; of use where the next
  // TrainUnit is of this batch, unchanged.
  virtual void Prefetch(const Batch& batch) = 0;

  // Without dropout.
  virtual EvalResult Evaluate(const float* parameters, const Batch& batch) = 0;
};

// The model that the config names. `compute` outlives it. Errors name the key and what would be
// right.
Result<std::unique_ptr<Model>> MakeModel(const ModelSpec& spec, Compute& compute);

}  // namespace lockstep::worker
