// A model: a flat FP32 parameter vector, and code that turns samples into loss and gradient.
//
// Memory. Parameters and gradients are memory of the model's Compute (plain memory for the CPU),
// owned by the caller. A model keeps its scratch memory between calls; its size depends on the
// model, not on the batch: samples are computed in sub-batches of a fixed size. Threads. One thread
// at a time may use it; only the cancel flag may be set by another.
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

// Called from within TrainUnit: no later operation of this unit writes the gradient of this block
// (index into Model::blocks). It is called for each block once, in finish order.
class BackwardObserver {
 public:
  virtual ~BackwardObserver() = default;
  virtual void BlockFinal(std::uint32_t block) = 0;
  // Called once, after the last BlockFinal: the rest of the unit waits for the device. A device
  // with memory of its own only then works on the reported blocks.
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
  // They are in model order; together they are the parameter vector.
  virtual const std::vector<NamedTensor>& tensors() const = 0;
  // They are in model order, without gaps.
  virtual const std::vector<ParameterBlock>& blocks() const = 0;
  // Indices into blocks(), in the order in which the backward pass finishes them.
  virtual const std::vector<std::uint32_t>& finish_order() const = 0;

  // Uses He's uniform initialization before ReLU, Glorot's for the last layer, and zero for biases.
  // It writes host memory, with the same bits on every machine.
  virtual void InitParameters(std::uint64_t seed, std::span<float> parameters) const = 0;

  // Adds the SUM of the gradients over the batch's samples to `gradient`; an empty batch adds
  // nothing. It uses dropout. The addends are the same whatever other units are computed before or
  // after, up to the additions into `gradient`. `observer` may be null. `cancelled` is checked
  // between layers and slices of layers.
  virtual TrainResult TrainUnit(const float* parameters, float* gradient, const Batch& batch,
                                BackwardObserver* observer, const std::atomic<bool>& cancelled) = 0;

  // Begins to bring the first samples of a training batch to the device; it helps where the next
  // TrainUnit has this batch, unchanged.
  virtual void Prefetch(const Batch& batch) = 0;

  // It uses no dropout.
  virtual EvalResult Evaluate(const float* parameters, const Batch& batch) = 0;
};

// Makes the model that the config names. `compute` outlives it. Errors name the key and the valid
// values.
Result<std::unique_ptr<Model>> MakeModel(const ModelSpec& spec, Compute& compute);

}  // namespace lockstep::worker
