#include <cmath>

#include "worker/models/layer.h"

namespace lockstep::worker {
namespace {

class Dense final : public Layer {
 public:
  Dense(Compute& compute, const std::string& name, std::size_t inputs, std::size_t outputs,
        Activation activation)
      : compute_(compute),
        name_(name),
        inputs_(inputs),
        outputs_(outputs),
        relu_(activation == Activation::kRelu) {}

  std::size_t output_size() const override { return outputs_; }

  std::vector<LayerTensor> tensors() const override {
    const auto fan = static_cast<float>(relu_ ? inputs_ : inputs_ + outputs_);
    return {{name_ + ".weight", {outputs_, inputs_}, 0, std::sqrt(6.0f / fan)},
            {name_ + ".bias", {outputs_}}};
  }

  void Forward(const Pass& pass, const float* parameters, const float* x, float* y) override {
    compute_.Gemm(Transpose::kNo, Transpose::kYes, pass.rows, outputs_, inputs_, x, parameters, 0,
                  y);
    compute_.AddBias(pass.rows, outputs_, parameters + weights(), relu_, y);
  }

  void BackwardParameters(const Pass& pass, const float* x, const float* y, float* dy,
                          float* gradient) override {
    if (relu_) compute_.ReluBackward(pass.rows * outputs_, y, dy);
    compute_.Gemm(Transpose::kYes, Transpose::kNo, outputs_, inputs_, pass.rows, dy, x, 1,
                  gradient);
    compute_.AddColumnSums(pass.rows, outputs_, dy, gradient + weights());
  }

  void BackwardInput(const Pass& pass, const float* parameters, const float* dy,
                     float* dx) override {
    compute_.Gemm(Transpose::kNo, Transpose::kNo, pass.rows, inputs_, outputs_, dy, parameters, 0,
                  dx);
  }

 private:
  std::size_t weights() const { return outputs_ * inputs_; }

  Compute& compute_;
  const std::string name_;
  const std::size_t inputs_;
  const std::size_t outputs_;
  const bool relu_;
};

}  // namespace

std::unique_ptr<Layer> MakeDense(Compute& compute, const std::string& name, std::size_t inputs,
                                 std::size_t outputs, Activation activation) {
  return std::make_unique<Dense>(compute, name, inputs, outputs, activation);
}

}  // namespace lockstep::worker
