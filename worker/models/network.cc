#include "worker/models/network.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lockstep::worker {
namespace {

constexpr std::uint64_t kInitialParameters = 0x696E6974;  // "init" names the stream

struct LayerStage {
  std::unique_ptr<Layer> layer;
  std::size_t offset = 0;  // of its parameters
  bool has_parameters = false;
  std::uint32_t block = 0;    // when it has parameters
  DeviceArray<float> output;  // [max_rows, output_size]
};

class Network final : public Model {
 public:
  Network(Compute& compute, std::vector<std::unique_ptr<Layer>> layers, std::size_t input_size,
          std::size_t classes, std::size_t max_rows)
      : compute_(compute), input_size_(input_size), classes_(classes), max_rows_(max_rows) {
    std::size_t widest = classes;
    for (auto& layer : layers) {
      LayerStage stage;
      stage.offset = parameter_count_;
      stage.output = DeviceArray<float>(compute, max_rows * layer->output_size());
      widest = std::max(widest, layer->output_size());
      for (LayerTensor& tensor : layer->tensors()) Add(std::move(tensor));
      stage.has_parameters = parameter_count_ > stage.offset;
      if (stage.has_parameters) {
        if (blocks_.empty()) first_learning_ = stages_.size();
        stage.block = static_cast<std::uint32_t>(blocks_.size());
        blocks_.push_back({stage.offset, parameter_count_ - stage.offset});
      }
      stage.layer = std::move(layer);
      stages_.push_back(std::move(stage));
    }
    LOCKSTEP_CHECK(!blocks_.empty() && stages_.back().layer->output_size() == classes);
    for (auto block = static_cast<std::uint32_t>(blocks_.size()); block-- > 0;) {
      finish_order_.push_back(block);
    }
    delta_ = DeviceArray<float>(compute, max_rows * widest);
    next_delta_ = DeviceArray<float>(compute, max_rows * widest);
    streams_.reserve(max_rows);
  }

  std::uint64_t parameter_count() const override { return parameter_count_; }
  const std::vector<NamedTensor>& tensors() const override { return tensors_; }
  const std::vector<ParameterBlock>& blocks() const override { return blocks_; }
  const std::vector<std::uint32_t>& finish_order() const override { return finish_order_; }

  void InitParameters(std::uint64_t seed, std::span<float> parameters) const override {
    LOCKSTEP_CHECK(parameters.size() == parameter_count_);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const std::span<float> values = parameters.subspan(tensors_[i].offset, tensors_[i].count);
      const Initial& initial = initial_[i];
      RandomStream random(seed, kInitialParameters, i);
      for (float& value : values) {
        value = initial.uniform_limit > 0
                    ? (random.NextUniform() * 2.0f - 1.0f) * initial.uniform_limit
                    : initial.value;
      }
    }
  }

  TrainResult TrainUnit(const float* parameters, float* gradient, const Batch& batch,
                        BackwardObserver* observer, const std::atomic<bool>& cancelled) override {
    TrainResult result;
    if (batch.samples == 0 && observer != nullptr) {
      for (std::uint32_t block : finish_order_) observer->BlockFinal(block);
    }
    for (std::size_t from = 0; from < batch.samples; from += max_rows_) {
      Pass pass = SubBatch(batch, from);
      pass.training = true;
      pass.cancelled = &cancelled;
      streams_.clear();
      for (std::size_t r = 0; r < pass.rows; ++r) {
        streams_.push_back(SampleStream(batch, DrawPurpose::kDropout, from + r));
      }
      pass.streams = streams_;
      const float* input = Input(batch, from, pass.rows);
      const float* logits = Forward(pass, parameters, input);
      const bool last = from + pass.rows == batch.samples;
      if (!pass.Cancelled()) {
        compute_.SoftmaxLoss(pass.rows, classes_, logits, Labels(batch, from, pass.rows),
                             delta_.get());
        Backward(pass, parameters, input, gradient, last ? observer : nullptr);
      }
      if (pass.Cancelled()) {
        result.cancelled = true;
        break;
      }
      result.samples += pass.rows;
    }
    if (observer != nullptr && !result.cancelled) observer->AllAsked();
    result.loss_sum = compute_.TakeLossSums().loss;
    return result;
  }

  void Prefetch(const Batch& batch) override {
    if (batch.samples == 0) return;
    const std::size_t rows = SubBatch(batch, 0).rows;
    ahead_ = {BatchKey::Of(batch), Stage(batch, 0, rows)};
  }

  EvalResult Evaluate(const float* parameters, const Batch& batch) override {
    EvalResult result;
    for (std::size_t from = 0; from < batch.samples; from += max_rows_) {
      const Pass pass = SubBatch(batch, from);
      const float* logits = Forward(pass, parameters, Stage(batch, from, pass.rows));
      compute_.SoftmaxLoss(pass.rows, classes_, logits, Labels(batch, from, pass.rows), nullptr);
      result.samples += pass.rows;
    }
    ahead_ = {};  // the samples staged for training are gone
    const LossSums sums = compute_.TakeLossSums();
    result.loss_sum = sums.loss;
    result.correct = sums.correct;
    return result;
  }

 private:
  struct Initial {
    float value = 0;
    float uniform_limit = 0;
  };

  // The key that distinguishes a training batch from all others.
  struct BatchKey {
    const float* inputs = nullptr;
    std::uint64_t seed = 0;
    std::uint32_t epoch = 0;
    std::uint64_t first_position = 0;
    std::vector<std::uint64_t> positions;
    std::size_t samples = 0;
    bool operator==(const BatchKey&) const = default;
    static BatchKey Of(const Batch& batch) {
      return {batch.inputs.data(),  batch.seed,      batch.epoch,
              batch.first_position, batch.positions, batch.samples};
    }
  };
  struct Ahead {
    BatchKey batch;
    const float* staged = nullptr;
  };

  void Add(LayerTensor tensor) {
    std::uint64_t count = 1;
    for (std::uint64_t extent : tensor.shape) count *= extent;
    tensors_.push_back({std::move(tensor.name), std::move(tensor.shape), parameter_count_, count});
    initial_.push_back({tensor.initial, tensor.uniform_limit});
    parameter_count_ += count;
  }

  Pass SubBatch(const Batch& batch, std::size_t from) const {
    Pass pass;
    pass.rows = std::min(max_rows_, batch.samples - from);
    return pass;
  }

  // A training batch's rows on the device.
  const float* Input(const Batch& batch, std::size_t from, std::size_t rows) {
    const Ahead ahead = std::exchange(ahead_, {});
    if (from == 0 && ahead.staged != nullptr && ahead.batch == BatchKey::Of(batch))
      return ahead.staged;
    return Stage(batch, from, rows);
  }

  const float* Stage(const Batch& batch, std::size_t from, std::size_t rows) {
    LOCKSTEP_CHECK(batch.inputs.size() >= (from + rows) * input_size_);
    return compute_.Stage({batch.inputs.data() + from * input_size_, rows * input_size_});
  }

  static std::span<const std::uint16_t> Labels(const Batch& batch, std::size_t from,
                                               std::size_t rows) {
    return std::span(batch.labels).subspan(from, rows);
  }

  // Computes the logits; void when cancelled.
  const float* Forward(const Pass& pass, const float* parameters, const float* x) {
    for (LayerStage& stage : stages_) {
      if (pass.Cancelled()) break;
      stage.layer->Forward(pass, parameters + stage.offset, x, stage.output.get());
      x = stage.output.get();
    }
    return x;
  }

  // Starts from the gradient of the logits in delta_.
  void Backward(const Pass& pass, const float* parameters, const float* input, float* gradient,
                BackwardObserver* observer) {
    for (std::size_t i = stages_.size(); i-- > first_learning_;) {
      LayerStage& stage = stages_[i];
      if (pass.Cancelled()) return;
      const float* x = i == 0 ? input : stages_[i - 1].output.get();
      stage.layer->BackwardParameters(pass, x, stage.output.get(), delta_.get(),
                                      gradient + stage.offset);
      if (stage.has_parameters && observer != nullptr && !pass.Cancelled()) {
        observer->BlockFinal(stage.block);
      }
      if (i == first_learning_) return;
      stage.layer->BackwardInput(pass, parameters + stage.offset, delta_.get(), next_delta_.get());
      std::swap(delta_, next_delta_);
    }
  }

  Compute& compute_;
  const std::size_t input_size_;
  const std::size_t classes_;
  const std::size_t max_rows_;
  std::vector<LayerStage> stages_;
  std::size_t first_learning_ = 0;  // no layer before it has parameters
  std::uint64_t parameter_count_ = 0;
  std::vector<NamedTensor> tensors_;
  std::vector<Initial> initial_;  // by tensor
  std::vector<ParameterBlock> blocks_;
  std::vector<std::uint32_t> finish_order_;
  DeviceArray<float> delta_;  // gradient of a layer's output
  DeviceArray<float> next_delta_;
  std::vector<RandomStream> streams_;
  Ahead ahead_;  // the first rows of the next training batch
};

}  // namespace

std::unique_ptr<Model> MakeNetwork(Compute& compute, std::vector<std::unique_ptr<Layer>> layers,
                                   std::size_t input_size, std::size_t classes,
                                   std::size_t max_rows) {
  return std::make_unique<Network>(compute, std::move(layers), input_size, classes, max_rows);
}

}  // namespace lockstep::worker
