#include "tests/unit/models/reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace lockstep::worker::reference {
namespace {

using Values = std::vector<double>;

// Walks one sample through the layers, taking parameters as it goes.
class Walk {
 public:
  Walk(const ModelSpec& spec, const Values& parameters, RandomStream stream, bool training)
      : spec_(spec), next_(parameters.data()), stream_(stream), training_(training) {}

  Values Dense(const Values& x, std::size_t outputs, bool relu) {
    const double* weight = next_;
    const double* bias = weight + outputs * x.size();
    next_ = bias + outputs;
    Values y(outputs);
    for (std::size_t o = 0; o < outputs; ++o) {
      y[o] = bias[o];
      for (std::size_t i = 0; i < x.size(); ++i) y[o] += weight[o * x.size() + i] * x[i];
      if (relu) y[o] = std::max(y[o], 0.0);
    }
    return y;
  }

  // Channels-last; updates the size.
  Values Conv(const Values& x, ImageSize& size, std::size_t outputs) {
    const double* weight = next_;
    const double* bias = weight + outputs * 9 * size.channels;
    next_ = bias + outputs;
    const auto value = [&](std::size_t o, std::size_t y, std::size_t z) {
      double sum = bias[o];
      for (std::size_t tap = 0; tap < 9; ++tap) {
        const std::size_t row = y + tap / 3, column = z + tap % 3;  // one too high
        if (row < 1 || row > size.height || column < 1 || column > size.width) continue;
        for (std::size_t c = 0; c < size.channels; ++c) {
          sum += weight[(o * 9 + tap) * size.channels + c] *
                 x[((row - 1) * size.width + column - 1) * size.channels + c];
        }
      }
      return sum;
    };
    const ImageSize pooled{size.height / 2, size.width / 2, outputs};
    Values out(pooled.size());
    for (std::size_t y = 0; y < pooled.height; ++y) {
      for (std::size_t z = 0; z < pooled.width; ++z) {
        for (std::size_t o = 0; o < outputs; ++o) {
          double best = 0;
          for (std::size_t k = 0; k < 4; ++k) {
            best = std::max(best, value(o, 2 * y + k / 2, 2 * z + k % 2));
          }
          out[(y * pooled.width + z) * outputs + o] = best;
        }
      }
    }
    size = pooled;
    return Normalize(out);
  }

  Values Hidden(const Values& x, std::size_t outputs) {
    return Drop(Normalize(Dense(x, outputs, true)));
  }

 private:
  Values Normalize(Values x) {
    if (spec_.config.normalization != "layer") return x;
    const double* gain = next_;
    const double* shift = gain + x.size();
    next_ = shift + x.size();
    const auto count = static_cast<double>(x.size());
    double mean = 0, variance = 0;
    for (double v : x) mean += v / count;
    for (double v : x) variance += (v - mean) * (v - mean) / count;
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = (x[i] - mean) / std::sqrt(variance + 1e-5) * gain[i] + shift[i];
    }
    return x;
  }

  Values Drop(Values x) {
    if (spec_.config.dropout <= 0 || !training_) return x;
    const auto threshold = static_cast<std::uint64_t>(std::lround(spec_.config.dropout * 65536));
    const std::uint64_t layer = dropout_layers_++;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::uint64_t draw = stream_.Word((layer << 32) + i / 4) >> (16 * (i % 4)) & 0xFFFF;
      x[i] = draw < threshold ? 0 : x[i] / (1 - static_cast<double>(threshold) / 65536);
    }
    return x;
  }

  const ModelSpec& spec_;
  const double* next_;
  RandomStream stream_;
  bool training_;
  std::uint64_t dropout_layers_ = 0;
};

Values Logits(const ModelSpec& spec, Walk& walk, Values x) {
  const auto& widths = spec.config.widths;
  if (spec.config.name == "mlp") {
    for (std::uint32_t width : widths) x = walk.Hidden(x, width);
  } else if (spec.config.name == "cnn") {
    ImageSize size{spec.input.height, spec.input.width, spec.input.channels};
    Values image(x.size());
    for (std::size_t c = 0; c < size.channels; ++c) {
      for (std::size_t p = 0; p < size.height * size.width; ++p) {
        image[p * size.channels + c] = x[c * size.height * size.width + p];
      }
    }
    for (std::size_t i = 0; i + 1 < widths.size(); ++i) image = walk.Conv(image, size, widths[i]);
    x = walk.Hidden(image, widths.back());
  }
  return walk.Dense(x, spec.classes, false);
}

}  // namespace

Outcome Loss(const ModelSpec& spec, const std::vector<double>& parameters, const Batch& batch,
             bool training) {
  Outcome outcome;
  const std::size_t features = spec.input.size();
  for (std::size_t s = 0; s < batch.samples; ++s) {
    Walk walk(spec, parameters, SampleStream(batch, DrawPurpose::kDropout, s), training);
    const auto first = batch.inputs.begin() + static_cast<std::ptrdiff_t>(s * features);
    const Values logits =
        Logits(spec, walk, Values(first, first + static_cast<std::ptrdiff_t>(features)));
    const auto largest = std::max_element(logits.begin(), logits.end());
    double total = 0;
    for (double logit : logits) total += std::exp(logit - *largest);
    outcome.loss_sum += std::log(total) + *largest - logits[batch.labels[s]];
    if (largest - logits.begin() == batch.labels[s]) ++outcome.correct;
  }
  return outcome;
}

}  // namespace lockstep::worker::reference
