// The neighbourhoods of an image take nine times its memory. They are written for a few samples at
// a time (on a CPU into a buffer that stays in the cache). The backward pass writes them again, so
// they are not kept.
#include <algorithm>
#include <cmath>

#include "worker/models/layer.h"

namespace lockstep::worker {
namespace {

class ConvBlock final : public Layer {
 public:
  ConvBlock(Compute& compute, const std::string& name, const ImageSize& input, std::size_t outputs,
            std::size_t max_rows)
      : compute_(compute),
        name_(name),
        input_(input),
        full_{input.height, input.width, outputs},
        pooled_{input.height / 2, input.width / 2, outputs},
        slice_rows_(std::clamp<std::size_t>(
            compute.granularity().columns_bytes / (columns() * pixels() * sizeof(float)), 1,
            max_rows)),
        columns_(compute, slice_rows_ * pixels() * columns()),
        values_(compute, slice_rows_ * full_.size()),
        choice_(compute, max_rows * pooled_.size()) {}

  std::size_t output_size() const override { return pooled_.size(); }

  std::vector<LayerTensor> tensors() const override {
    const float limit = std::sqrt(6.0f / static_cast<float>(columns()));
    return {{name_ + ".weight", {outputs(), 3, 3, input_.channels}, 0, limit},
            {name_ + ".bias", {outputs()}}};
  }

  void Forward(const Pass& pass, const float* parameters, const float* x, float* y) override {
    ForEachSlice(pass, [&](std::size_t from, std::size_t rows) {
      compute_.Im2col(rows, input_, x + from * input_.size(), columns_.get());
      compute_.Gemm(Transpose::kNo, Transpose::kYes, rows * pixels(), outputs(), columns(),
                    columns_.get(), parameters, 0, values_.get());
      compute_.BiasReluPool(rows, full_, values_.get(), parameters + weights(),
                            y + from * pooled_.size(), choice_.get() + from * pooled_.size());
    });
  }

  void BackwardParameters(const Pass& pass, const float* x, const float* /*y*/, float* dy,
                          float* gradient) override {
    ForEachSlice(pass, [&](std::size_t from, std::size_t rows) {
      Unpool(from, rows, dy);
      compute_.Im2col(rows, input_, x + from * input_.size(), columns_.get());
      compute_.Gemm(Transpose::kYes, Transpose::kNo, outputs(), columns(), rows * pixels(),
                    values_.get(), columns_.get(), 1, gradient);
    });
    // Each window passes its gradient to one place at most: the bias's gradient is the sum over
    // windows.
    compute_.PoolReluBackward(pass.rows * pooled_.size(), choice_.get(), dy);
    compute_.AddColumnSums(pass.rows * pooled_.height * pooled_.width, outputs(), dy,
                           gradient + weights());
  }

  void BackwardInput(const Pass& pass, const float* parameters, const float* dy,
                     float* dx) override {
    ForEachSlice(pass, [&](std::size_t from, std::size_t rows) {
      Unpool(from, rows, dy);
      compute_.Gemm(Transpose::kNo, Transpose::kNo, rows * pixels(), columns(), outputs(),
                    values_.get(), parameters, 0, columns_.get());
      compute_.Col2im(rows, input_, columns_.get(), dx + from * input_.size());
    });
  }

 private:
  std::size_t outputs() const { return full_.channels; }
  std::size_t pixels() const { return input_.height * input_.width; }
  std::size_t columns() const { return 9 * input_.channels; }
  std::size_t weights() const { return outputs() * columns(); }

  // The slices are the same for every pass with the same number of rows.
  template <class Body>
  void ForEachSlice(const Pass& pass, Body body) {
    for (std::size_t from = 0; from < pass.rows && !pass.Cancelled(); from += slice_rows_) {
      body(from, std::min(slice_rows_, pass.rows - from));
    }
  }

  // Computes the gradient before pooling, for rows from .. from + rows, into values_.
  void Unpool(std::size_t from, std::size_t rows, const float* dy) {
    compute_.UnpoolBackward(rows, full_, dy + from * pooled_.size(),
                            choice_.get() + from * pooled_.size(), values_.get());
  }

  Compute& compute_;
  const std::string name_;
  const ImageSize input_;
  const ImageSize full_;
  const ImageSize pooled_;
  const std::size_t slice_rows_;
  DeviceArray<float> columns_;  // [slice_rows * pixels, columns]
  DeviceArray<float> values_;   // [slice_rows, full]: outputs before pooling, or their gradients
  DeviceArray<std::uint8_t> choice_;  // [max_rows, pooled]
};

}  // namespace

std::unique_ptr<Layer> MakeConvBlock(Compute& compute, const std::string& name,
                                     const ImageSize& input, std::size_t outputs,
                                     std::size_t max_rows) {
  return std::make_unique<ConvBlock>(compute, name, input, outputs, max_rows);
}

}  // namespace lockstep::worker
