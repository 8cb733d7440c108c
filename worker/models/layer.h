// The parts that models are built from, internal to worker/models.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "worker/compute/compute.h"

namespace lockstep::worker {

// One pass of a sub-batch.
struct Pass {
  std::size_t rows = 0;
  bool training = false;
  std::span<const RandomStream> streams;  // of the rows, for dropout; when training
  const std::atomic<bool>* cancelled = nullptr;

  bool Cancelled() const {
    return cancelled != nullptr && cancelled->load(std::memory_order_relaxed);
  }
};

struct LayerTensor {
  std::string name;
  std::vector<std::uint64_t> shape;
  float initial = 0;        // the value of all elements, when `limit` is 0
  float uniform_limit = 0;  // drawn from [-limit, limit)
};

// A layer turns rows into rows. It keeps the data of the last forward pass that its backward pass
// needs. After a cancelled pass its outputs are void.
class Layer {
 public:
  virtual ~Layer() = default;

  virtual std::size_t output_size() const = 0;  // floats of a row
  // The tensors in the order of `parameters` and `gradient`; none for a layer without parameters.
  virtual std::vector<LayerTensor> tensors() const { return {}; }

  // y: [rows, output_size].
  virtual void Forward(const Pass& pass, const float* parameters, const float* x, float* y) = 0;
  // Adds to `gradient`. It may change dy, which only BackwardInput uses later. x, y: as in Forward.
  virtual void BackwardParameters(const Pass& pass, const float* x, const float* y, float* dy,
                                  float* gradient) = 0;
  // Called after BackwardParameters, with the same dy. It is not called for the first layer of a
  // model.
  virtual void BackwardInput(const Pass& pass, const float* parameters, const float* dy,
                             float* dx) = 0;
};

// The function after a layer; it decides how the layer's weights are drawn.
enum class Activation : bool { kNone, kRelu };

// y = activation(x W^T + b), W: [outputs, inputs].
std::unique_ptr<Layer> MakeDense(Compute& compute, const std::string& name, std::size_t inputs,
                                 std::size_t outputs, Activation activation);
// y = 2x2 max pooling of ReLU of a 3x3 convolution with a border of zeros; W: [outputs, 3, 3,
// channels]. It is channels-last.
std::unique_ptr<Layer> MakeConvBlock(Compute& compute, const std::string& name,
                                     const ImageSize& input, std::size_t outputs,
                                     std::size_t max_rows);
// `index` names the layer's draws; each dropout layer of a model has its own.
std::unique_ptr<Layer> MakeDropout(Compute& compute, std::uint32_t index, std::size_t size,
                                   double probability);
std::unique_ptr<Layer> MakeLayerNorm(Compute& compute, const std::string& name, std::size_t size,
                                     std::size_t max_rows);
// Converts [channels, height, width] to channels-last. It must be the first layer.
std::unique_ptr<Layer> MakeChannelsLast(Compute& compute, const ImageSize& image);

}  // namespace lockstep::worker
