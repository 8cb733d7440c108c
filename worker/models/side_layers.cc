// Layers beside the dense and convolution ones: dropout, layer normalization, change of the images'
// layout.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "worker/models/layer.h"

namespace lockstep::worker {
namespace {

// It keeps nothing: the backward pass draws the same numbers again.
class DropoutLayer final : public Layer {
 public:
  DropoutLayer(Compute& compute, std::uint32_t index, std::size_t size, double probability)
      : compute_(compute),
        index_(index),
        size_(size),
        threshold_(static_cast<std::uint32_t>(
            std::clamp<long>(std::lround(probability * 65536.0), 0, 65535))) {}

  std::size_t output_size() const override { return size_; }
  void Forward(const Pass& pass, const float* /*parameters*/, const float* x, float* y) override {
    // Without training, every element is kept, at its own size.
    compute_.Dropout(pass.rows, size_, pass.training ? threshold_ : 0, index_, pass.streams, x, y);
  }
  void BackwardParameters(const Pass&, const float*, const float*, float*, float*) override {}
  void BackwardInput(const Pass& pass, const float* /*parameters*/, const float* dy,
                     float* dx) override {
    compute_.Dropout(pass.rows, size_, threshold_, index_, pass.streams, dy, dx);
  }

 private:
  Compute& compute_;
  const std::uint32_t index_;
  const std::size_t size_;
  const std::uint32_t threshold_;
};

// The source is Ba, Kiros, Hinton 2016. It normalizes within a sample: unlike with batch
// normalization, a sample's unit does not matter.
class LayerNormLayer final : public Layer {
 public:
  LayerNormLayer(Compute& compute, const std::string& name, std::size_t size, std::size_t max_rows)
      : compute_(compute),
        name_(name),
        size_(size),
        normalized_(compute, max_rows * size),
        inverse_deviation_(compute, max_rows) {}

  std::size_t output_size() const override { return size_; }
  std::vector<LayerTensor> tensors() const override {
    return {{name_ + ".gain", {size_}, 1.0f}, {name_ + ".shift", {size_}}};
  }
  void Forward(const Pass& pass, const float* parameters, const float* x, float* y) override {
    compute_.LayerNorm(pass.rows, size_, x, parameters, parameters + size_, y, normalized_.get(),
                       inverse_deviation_.get());
  }
  void BackwardParameters(const Pass& pass, const float* /*x*/, const float* /*y*/, float* dy,
                          float* gradient) override {
    compute_.LayerNormGain(pass.rows, size_, dy, normalized_.get(), gradient);
    compute_.AddColumnSums(pass.rows, size_, dy, gradient + size_);
  }
  void BackwardInput(const Pass& pass, const float* parameters, const float* dy,
                     float* dx) override {
    compute_.LayerNormBackward(pass.rows, size_, dy, parameters, normalized_.get(),
                               inverse_deviation_.get(), dx);
  }

 private:
  Compute& compute_;
  const std::string name_;
  const std::size_t size_;
  DeviceArray<float> normalized_;
  DeviceArray<float> inverse_deviation_;
};

class ChannelsLastLayer final : public Layer {
 public:
  ChannelsLastLayer(Compute& compute, const ImageSize& image) : compute_(compute), image_(image) {}

  std::size_t output_size() const override { return image_.size(); }
  void Forward(const Pass& pass, const float* /*parameters*/, const float* x, float* y) override {
    compute_.ChannelsLast(pass.rows, image_, x, y);
  }
  void BackwardParameters(const Pass&, const float*, const float*, float*, float*) override {}
  void BackwardInput(const Pass&, const float*, const float*, float*) override {
    LOCKSTEP_CHECK(false, "images change their layout in the first layer only");
  }

 private:
  Compute& compute_;
  const ImageSize image_;
};

}  // namespace

std::unique_ptr<Layer> MakeDropout(Compute& compute, std::uint32_t index, std::size_t size,
                                   double probability) {
  return std::make_unique<DropoutLayer>(compute, index, size, probability);
}

std::unique_ptr<Layer> MakeLayerNorm(Compute& compute, const std::string& name, std::size_t size,
                                     std::size_t max_rows) {
  return std::make_unique<LayerNormLayer>(compute, name, size, max_rows);
}

std::unique_ptr<Layer> MakeChannelsLast(Compute& compute, const ImageSize& image) {
  return std::make_unique<ChannelsLastLayer>(compute, image);
}

}  // namespace lockstep::worker
