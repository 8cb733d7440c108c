#include "worker/compute/cpu/kernels.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/vector_clones.h"

namespace lockstep::worker::cpu {
namespace {

// Sums of a row use so many lanes, so that the loop can use vectors and yet has one order.
constexpr std::size_t kLanes = 16;
constexpr float kVarianceFloor = 1e-5f;

float SumLanes(const float* lanes) {
  float sum = 0;
  for (std::size_t i = 0; i < kLanes; ++i) sum += lanes[i];
  return sum;
}

}  // namespace

LOCKSTEP_VECTOR_CLONES
void AddBias(std::size_t rows, std::size_t columns, const float* bias, bool relu, float* x) {
  for (std::size_t r = 0; r < rows; ++r) {
    float* __restrict row = x + r * columns;
    if (relu) {
      for (std::size_t j = 0; j < columns; ++j) {
        const float v = row[j] + bias[j];
        row[j] = v > 0 ? v : 0;
      }
    } else {
      for (std::size_t j = 0; j < columns; ++j) row[j] += bias[j];
    }
  }
}

LOCKSTEP_VECTOR_CLONES
void ReluBackward(std::size_t count, const float* y, float* __restrict delta) {
  for (std::size_t i = 0; i < count; ++i) delta[i] = y[i] > 0 ? delta[i] : 0;
}

LOCKSTEP_VECTOR_CLONES
void AddColumnSums(std::size_t rows, std::size_t columns, const float* x, float* __restrict sums) {
  for (std::size_t r = 0; r < rows; ++r) {
    const float* row = x + r * columns;
    for (std::size_t j = 0; j < columns; ++j) sums[j] += row[j];
  }
}

// One word of a stream decides four neighbouring elements, 16 bits each.
LOCKSTEP_VECTOR_CLONES
void Dropout(std::size_t rows, std::size_t columns, std::uint32_t threshold, std::uint32_t layer,
             std::span<const RandomStream> streams, const float* x, float* y) {
  if (threshold == 0) {
    if (x != y) std::copy_n(x, rows * columns, y);
    return;
  }
  const float scale = 65536.0f / static_cast<float>(65536u - threshold);
  const std::uint64_t base = static_cast<std::uint64_t>(layer) << 32;
  for (std::size_t r = 0; r < rows; ++r) {
    const RandomStream& stream = streams[r];
    const float* in = x + r * columns;
    float* out = y + r * columns;
    for (std::size_t j = 0; j < columns; j += 4) {
      const std::uint64_t word = stream.Word(base + j / 4);
      const std::size_t end = std::min<std::size_t>(4, columns - j);
      for (std::size_t i = 0; i < end; ++i) {
        const auto draw = static_cast<std::uint32_t>(word >> (16 * i)) & 0xFFFFu;
        out[j + i] = draw >= threshold ? in[j + i] * scale : 0;
      }
    }
  }
}

LOCKSTEP_VECTOR_CLONES
void LayerNorm(std::size_t rows, std::size_t columns, const float* x, const float* gain,
               const float* shift, float* y, float* normalized, float* inverse_deviation) {
  const auto count = static_cast<float>(columns);
  for (std::size_t r = 0; r < rows; ++r) {
    const float* in = x + r * columns;
    float* out = y + r * columns;
    float* kept = normalized + r * columns;
    float lanes[kLanes] = {};
    for (std::size_t j = 0; j < columns; ++j) lanes[j % kLanes] += in[j];
    const float mean = SumLanes(lanes) / count;
    std::fill_n(lanes, kLanes, 0.0f);
    for (std::size_t j = 0; j < columns; ++j) {
      const float centred = in[j] - mean;
      lanes[j % kLanes] += centred * centred;
    }
    const float inverse = 1.0f / std::sqrt(SumLanes(lanes) / count + kVarianceFloor);
    for (std::size_t j = 0; j < columns; ++j) {
      kept[j] = (in[j] - mean) * inverse;
      out[j] = kept[j] * gain[j] + shift[j];
    }
    inverse_deviation[r] = inverse;
  }
}

LOCKSTEP_VECTOR_CLONES
void LayerNormGain(std::size_t rows, std::size_t columns, const float* dy, const float* normalized,
                   float* __restrict gain_sum) {
  for (std::size_t r = 0; r < rows; ++r) {
    const float* d = dy + r * columns;
    const float* kept = normalized + r * columns;
    for (std::size_t j = 0; j < columns; ++j) gain_sum[j] += d[j] * kept[j];
  }
}

// With g = dy * gain: dx = (g - mean(g) - normalized * mean(g * normalized)) / deviation.
LOCKSTEP_VECTOR_CLONES
void LayerNormBackward(std::size_t rows, std::size_t columns, const float* dy, const float* gain,
                       const float* normalized, const float* inverse_deviation, float* dx) {
  const auto count = static_cast<float>(columns);
  for (std::size_t r = 0; r < rows; ++r) {
    const float* d = dy + r * columns;
    const float* kept = normalized + r * columns;
    float* out = dx + r * columns;
    float plain[kLanes] = {};
    float weighted[kLanes] = {};
    for (std::size_t j = 0; j < columns; ++j) {
      const float g = d[j] * gain[j];
      plain[j % kLanes] += g;
      weighted[j % kLanes] += g * kept[j];
    }
    const float mean = SumLanes(plain) / count;
    const float mean_weighted = SumLanes(weighted) / count;
    for (std::size_t j = 0; j < columns; ++j) {
      out[j] = (d[j] * gain[j] - mean - kept[j] * mean_weighted) * inverse_deviation[r];
    }
  }
}

LossSums SoftmaxLoss(std::size_t rows, std::size_t classes, const float* logits,
                     std::span<const std::uint16_t> labels, float* delta) {
  LossSums sums;
  for (std::size_t r = 0; r < rows; ++r) {
    const float* row = logits + r * classes;
    const std::size_t label = labels[r];
    LOCKSTEP_CHECK(label < classes, "label {} of {} classes", label, classes);
    const float* largest = std::max_element(row, row + classes);
    if (static_cast<std::size_t>(largest - row) == label) ++sums.correct;
    float total = 0;
    for (std::size_t j = 0; j < classes; ++j) {
      const float e = std::exp(row[j] - *largest);
      if (delta != nullptr) delta[r * classes + j] = e;
      total += e;
    }
    sums.loss += static_cast<double>(std::log(total) + (*largest - row[label]));
    if (delta == nullptr) continue;
    float* d = delta + r * classes;
    const float inverse = 1.0f / total;
    for (std::size_t j = 0; j < classes; ++j) d[j] *= inverse;
    d[label] -= 1.0f;
  }
  return sums;
}

}  // namespace lockstep::worker::cpu
