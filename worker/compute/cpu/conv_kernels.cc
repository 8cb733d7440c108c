#include "worker/compute/cpu/conv_kernels.h"

#include <algorithm>
#include <cstring>

#include "base/vector_clones.h"

namespace lockstep::worker::cpu {
namespace {

constexpr std::uint8_t kCutOff = 4;  // a `choice` besides the places 0..3 of the 2x2 window

// kChannels = 0: any number. Small constants turn the copies into a few moves.
template <std::size_t kChannels>
void Im2colOf(std::size_t rows, const ImageSize& image, const float* x, float* columns) {
  const std::size_t channels = kChannels != 0 ? kChannels : image.channels;
  const std::size_t row_floats = image.width * channels;
  for (std::size_t r = 0; r < rows; ++r) {
    const float* source = x + r * image.size();
    for (std::size_t i = 0; i < image.height; ++i) {
      for (std::size_t tap = 0; tap < 3; ++tap) {
        float* out =
            columns + (r * image.height + i) * image.width * 9 * channels + tap * 3 * channels;
        const std::size_t stride = 9 * channels;
        if (i + tap < 1 || i + tap > image.height) {
          for (std::size_t j = 0; j < image.width; ++j) {
            std::fill_n(out + j * stride, 3 * channels, 0.0f);
          }
          continue;
        }
        const float* line = source + (i + tap - 1) * row_floats;
        const std::size_t last = image.width - 1;
        for (std::size_t j = 1; j < last; ++j) {
          std::memcpy(out + j * stride, line + (j - 1) * channels, 3 * channels * sizeof(float));
        }
        // At the edges, column -1 and column `width` are zero.
        std::fill_n(out, channels, 0.0f);
        std::copy_n(line, std::min<std::size_t>(image.width, 2) * channels, out + channels);
        float* end = out + last * stride;
        if (last > 0) std::copy_n(line + (last - 1) * channels, 2 * channels, end);
        std::fill_n(end + 2 * channels, channels, 0.0f);
      }
    }
  }
}

}  // namespace

void ChannelsLast(std::size_t rows, const ImageSize& image, const float* x, float* y) {
  const std::size_t pixels = image.height * image.width;
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < image.channels; ++c) {
      const float* plane = x + r * image.size() + c * pixels;
      float* out = y + r * image.size() + c;
      for (std::size_t p = 0; p < pixels; ++p) out[p * image.channels] = plane[p];
    }
  }
}

void Im2col(std::size_t rows, const ImageSize& image, const float* x, float* columns) {
  switch (image.channels) {
    case 1:
      return Im2colOf<1>(rows, image, x, columns);
    case 3:
      return Im2colOf<3>(rows, image, x, columns);
    case 16:
      return Im2colOf<16>(rows, image, x, columns);
    case 32:
      return Im2colOf<32>(rows, image, x, columns);
    default:
      return Im2colOf<0>(rows, image, x, columns);
  }
}

LOCKSTEP_VECTOR_CLONES
void Col2im(std::size_t rows, const ImageSize& image, const float* columns, float* x) {
  const std::size_t channels = image.channels;
  const std::size_t row_floats = image.width * channels;
  for (std::size_t r = 0; r < rows; ++r) {
    float* target = x + r * image.size();
    std::fill_n(target, image.size(), 0.0f);
    for (std::size_t i = 0; i < image.height; ++i) {
      for (std::size_t j = 0; j < image.width; ++j) {
        const float* column = columns + ((r * image.height + i) * image.width + j) * 9 * channels;
        // The neighbours in a line are adjacent in input and output: one run for each of the three
        // lines.
        const std::size_t skip = j == 0 ? channels : 0;
        const std::size_t end = j + 1 == image.width ? 2 * channels : 3 * channels;
        for (std::size_t tap = 0; tap < 3; ++tap) {
          if (i + tap < 1 || i + tap > image.height) continue;
          const float* from = column + tap * 3 * channels + skip;
          float* __restrict to =
              target + (i + tap - 1) * row_floats + j * channels + skip - channels;
          for (std::size_t k = 0; k < end - skip; ++k) to[k] += from[k];
        }
      }
    }
  }
}

LOCKSTEP_VECTOR_CLONES
void BiasReluPool(std::size_t rows, const ImageSize& image, const float* x, const float* bias,
                  float* y, std::uint8_t* choice) {
  const std::size_t channels = image.channels;
  const std::size_t row_floats = image.width * channels;
  const std::size_t height = image.height / 2;
  const std::size_t width = image.width / 2;
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t i = 0; i < height; ++i) {
      const float* line = x + r * image.size() + 2 * i * row_floats;
      for (std::size_t j = 0; j < width; ++j) {
        const float* a = line + 2 * j * channels;
        const float* b = a + channels;
        const float* c = a + row_floats;
        const float* d = c + channels;
        const std::size_t at = ((r * height + i) * width + j) * channels;
        float* __restrict out = y + at;
        std::uint8_t* __restrict chosen = choice + at;
        for (std::size_t k = 0; k < channels; ++k) {
          float m = a[k];
          std::int32_t which = 0;
          which = b[k] > m ? 1 : which;
          m = b[k] > m ? b[k] : m;
          which = c[k] > m ? 2 : which;
          m = c[k] > m ? c[k] : m;
          which = d[k] > m ? 3 : which;
          m = d[k] > m ? d[k] : m;
          const float v = m + bias[k];
          out[k] = v > 0 ? v : 0;
          chosen[k] = static_cast<std::uint8_t>(v > 0 ? which : kCutOff);
        }
      }
    }
  }
}

LOCKSTEP_VECTOR_CLONES
void UnpoolBackward(std::size_t rows, const ImageSize& image, const float* dy,
                    const std::uint8_t* choice, float* dx) {
  const std::size_t channels = image.channels;
  const std::size_t row_floats = image.width * channels;
  const std::size_t height = image.height / 2;
  const std::size_t width = image.width / 2;
  for (std::size_t r = 0; r < rows; ++r) {
    float* target = dx + r * image.size();
    for (std::size_t i = 0; i < height; ++i) {
      for (std::size_t j = 0; j < width; ++j) {
        const std::size_t at = ((r * height + i) * width + j) * channels;
        const float* d = dy + at;
        const std::uint8_t* chosen = choice + at;
        float* corner = target + 2 * i * row_floats + 2 * j * channels;
        for (std::int32_t place = 0; place < 4; ++place) {
          float* __restrict to = corner + static_cast<std::size_t>(place / 2) * row_floats +
                                 static_cast<std::size_t>(place % 2) * channels;
          for (std::size_t k = 0; k < channels; ++k) {
            to[k] = static_cast<std::int32_t>(chosen[k]) == place ? d[k] : 0;
          }
        }
      }
      if (image.width % 2 != 0) {
        float* edge = target + 2 * i * row_floats + (image.width - 1) * channels;
        std::fill_n(edge, channels, 0.0f);
        std::fill_n(edge + row_floats, channels, 0.0f);
      }
    }
    if (image.height % 2 != 0) {
      std::fill_n(target + (image.height - 1) * row_floats, row_floats, 0.0f);
    }
  }
}

LOCKSTEP_VECTOR_CLONES
void PoolReluBackward(std::size_t count, const std::uint8_t* choice, float* __restrict delta) {
  for (std::size_t i = 0; i < count; ++i) {
    delta[i] = static_cast<std::int32_t>(choice[i]) == kCutOff ? 0 : delta[i];
  }
}

}  // namespace lockstep::worker::cpu
