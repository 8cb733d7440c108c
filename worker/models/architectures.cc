#include "worker/models/architectures.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "worker/models/layer.h"
#include "worker/models/network.h"

namespace lockstep::worker {
namespace {

Error Invalid(std::string message) { return {ErrorCode::kInvalid, std::move(message)}; }

// Adds the layers that may follow a hidden layer: normalization, dropout.
class Builder {
 public:
  Builder(const ModelSpec& spec, Compute& compute, std::size_t max_rows)
      : config_(spec.config), compute_(compute), classes_(spec.classes), max_rows_(max_rows) {}

  void Hidden(const std::string& name, std::size_t inputs, std::size_t outputs) {
    layers_.push_back(MakeDense(compute_, name, inputs, outputs, Activation::kRelu));
    Normalize(name, outputs);
    if (config_.dropout > 0) {
      layers_.push_back(MakeDropout(compute_, dropout_layers_++, outputs, config_.dropout));
    }
  }
  ImageSize Conv(const std::string& name, const ImageSize& input, std::size_t outputs) {
    layers_.push_back(MakeConvBlock(compute_, name, input, outputs, max_rows_));
    const ImageSize pooled{input.height / 2, input.width / 2, outputs};
    Normalize(name, pooled.size());
    return pooled;
  }
  void ChannelsLast(const ImageSize& image) {
    if (image.channels > 1) layers_.push_back(MakeChannelsLast(compute_, image));
  }
  std::unique_ptr<Model> Finish(std::size_t inputs, std::size_t input_size) {
    layers_.push_back(MakeDense(compute_, "output", inputs, classes_, Activation::kNone));
    return MakeNetwork(compute_, std::move(layers_), input_size, classes_, max_rows_);
  }

 private:
  void Normalize(const std::string& name, std::size_t size) {
    if (config_.normalization == "layer") {
      layers_.push_back(MakeLayerNorm(compute_, name + ".norm", size, max_rows_));
    }
  }

  const ModelSection& config_;
  Compute& compute_;
  const std::size_t classes_;
  const std::size_t max_rows_;
  std::uint32_t dropout_layers_ = 0;
  std::vector<std::unique_ptr<Layer>> layers_;
};

}  // namespace

Result<std::unique_ptr<Model>> MakeSoftmax(const ModelSpec& spec, Compute& compute) {
  Builder builder(spec, compute, compute.granularity().dense_rows);
  return builder.Finish(spec.input.size(), spec.input.size());
}

Result<std::unique_ptr<Model>> MakeMlp(const ModelSpec& spec, Compute& compute) {
  Builder builder(spec, compute, compute.granularity().dense_rows);
  std::size_t inputs = spec.input.size();
  for (std::size_t i = 0; i < spec.config.widths.size(); ++i) {
    builder.Hidden(fmt::format("hidden{}", i + 1), inputs, spec.config.widths[i]);
    inputs = spec.config.widths[i];
  }
  return builder.Finish(inputs, spec.input.size());
}

Result<std::unique_ptr<Model>> MakeCnn(const ModelSpec& spec, Compute& compute) {
  const std::vector<std::uint32_t>& widths = spec.config.widths;
  if (widths.size() < 2) {
    return Invalid(
        "model.widths: cnn takes the channels of each convolution and then the width of the dense "
        "layer, as 16,32,128");
  }
  Builder builder(spec, compute, compute.granularity().conv_rows);
  ImageSize image{spec.input.height, spec.input.width, spec.input.channels};
  builder.ChannelsLast(image);
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    if (image.height < 2 || image.width < 2) {
      return Invalid(fmt::format(
          "model.widths: {} convolutions are too many for samples of {}x{}: each halves the image",
          widths.size() - 1, spec.input.height, spec.input.width));
    }
    image = builder.Conv(fmt::format("conv{}", i + 1), image, widths[i]);
  }
  builder.Hidden("hidden", image.size(), widths.back());
  return builder.Finish(widths.back(), spec.input.size());
}

}  // namespace lockstep::worker
