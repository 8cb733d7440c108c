#include "worker/compute/cuda/conv_kernels.h"
#include "worker/compute/cuda/launch.cuh"

namespace lockstep::worker::cuda {
namespace {

constexpr std::uint8_t kCutOff = 4;  // a `choice` besides the places 0..3 of the 2x2 window

// The size of an image, in 32 bits: divisions by it are fast, and an image has fewer elements.
struct Size {
  unsigned height;
  unsigned width;
  unsigned channels;
  __device__ unsigned count() const { return height * width * channels; }
};

Size SizeOf(const ImageSize& image) {
  // Neighbourhoods take nine times as many elements.
  if (image.size() >= (std::size_t{1} << 27)) throw DeviceError("images are too large for a GPU");
  return {static_cast<unsigned>(image.height), static_cast<unsigned>(image.width),
          static_cast<unsigned>(image.channels)};
}

// The place of a thread: elements of an image by x, images by y, both in strides of the grid.
#define LOCKSTEP_FOR_EACH_ELEMENT(r, i, rows, elements)                      \
  for (std::size_t r = blockIdx.y; r < (rows); r += gridDim.y)               \
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < (elements); \
         i += gridDim.x * blockDim.x)

__global__ void ChannelsLastKernel(std::size_t rows, Size image, const float* x, float* y) {
  const unsigned pixels = image.height * image.width;
  LOCKSTEP_FOR_EACH_ELEMENT(r, i, rows, image.count()) {
    const unsigned pixel = i / image.channels;
    const unsigned channel = i % image.channels;
    const std::size_t first = r * image.count();
    y[first + i] = x[first + channel * pixels + pixel];
  }
}

__global__ void Im2colKernel(std::size_t rows, Size image, const float* x, float* columns) {
  const unsigned elements = 9 * image.count();
  LOCKSTEP_FOR_EACH_ELEMENT(r, e, rows, elements) {
    const unsigned channel = e % image.channels;
    const unsigned tap = e / image.channels % 9;
    const unsigned pixel = e / image.channels / 9;
    // The number is one too large, so that the border has no negative numbers.
    const unsigned i = pixel / image.width + tap / 3;
    const unsigned j = pixel % image.width + tap % 3;
    const bool inside = i >= 1 && i <= image.height && j >= 1 && j <= image.width;
    columns[r * elements + e] =
        inside ? x[r * image.count() + ((i - 1) * image.width + j - 1) * image.channels + channel]
               : 0;
  }
}

__global__ void Col2imKernel(std::size_t rows, Size image, const float* columns, float* x) {
  LOCKSTEP_FOR_EACH_ELEMENT(r, e, rows, image.count()) {
    const unsigned channel = e % image.channels;
    const unsigned pixel = e / image.channels;
    const unsigned y0 = pixel / image.width;
    const unsigned x0 = pixel % image.width;
    const float* own = columns + r * 9 * image.count();
    float sum = 0;
    // The neighbours (y0 + di - 1, x0 + dj - 1) have this pixel as their tap (2 - di, 2 - dj).
    for (unsigned di = 0; di < 3; ++di) {
      if (y0 + di < 1 || y0 + di > image.height) continue;
      for (unsigned dj = 0; dj < 3; ++dj) {
        if (x0 + dj < 1 || x0 + dj > image.width) continue;
        const unsigned neighbour = (y0 + di - 1) * image.width + x0 + dj - 1;
        const unsigned tap = (2 - di) * 3 + 2 - dj;
        sum += own[(neighbour * 9 + tap) * image.channels + channel];
      }
    }
    x[r * image.count() + e] = sum;
  }
}

__global__ void BiasReluPoolKernel(std::size_t rows, Size image, const float* x, const float* bias,
                                   float* y, std::uint8_t* choice) {
  const unsigned width = image.width / 2;
  const unsigned elements = image.height / 2 * width * image.channels;
  const unsigned line = image.width * image.channels;
  LOCKSTEP_FOR_EACH_ELEMENT(r, e, rows, elements) {
    const unsigned channel = e % image.channels;
    const unsigned j = e / image.channels % width;
    const unsigned i = e / image.channels / width;
    const float* corner = x + r * image.count() + 2 * i * line + 2 * j * image.channels + channel;
    const float values[4] = {corner[0], corner[image.channels], corner[line],
                             corner[line + image.channels]};
    float largest = values[0];
    unsigned which = 0;
    for (unsigned place = 1; place < 4; ++place) {
      if (values[place] > largest) {
        largest = values[place];
        which = place;
      }
    }
    const float v = largest + bias[channel];
    y[r * elements + e] = v > 0 ? v : 0;
    choice[r * elements + e] = v > 0 ? static_cast<std::uint8_t>(which) : kCutOff;
  }
}

__global__ void UnpoolBackwardKernel(std::size_t rows, Size image, const float* dy,
                                     const std::uint8_t* choice, float* dx) {
  const unsigned width = image.width / 2;
  const unsigned height = image.height / 2;
  const unsigned pooled = height * width * image.channels;
  LOCKSTEP_FOR_EACH_ELEMENT(r, e, rows, image.count()) {
    const unsigned channel = e % image.channels;
    const unsigned j = e / image.channels % image.width;
    const unsigned i = e / image.channels / image.width;
    float value = 0;
    if (i / 2 < height && j / 2 < width) {
      const std::size_t at = r * pooled + (i / 2 * width + j / 2) * image.channels + channel;
      if (choice[at] == i % 2 * 2 + j % 2) value = dy[at];
    }
    dx[r * image.count() + e] = value;
  }
}

__global__ void PoolReluBackwardKernel(std::size_t count, const std::uint8_t* choice,
                                       float* delta) {
  for (std::size_t i = FirstElement(); i < count; i += ElementStride()) {
    if (choice[i] == kCutOff) delta[i] = 0;
  }
}

}  // namespace

void ChannelsLast(cudaStream_t stream, std::size_t rows, const ImageSize& image, const float* x,
                  float* y) {
  if (rows == 0) return;
  ChannelsLastKernel<<<GridForRows(rows, image.size()), kThreads, 0, stream>>>(rows, SizeOf(image),
                                                                               x, y);
  CheckLaunch("changing the layout of images");
}

void Im2col(cudaStream_t stream, std::size_t rows, const ImageSize& image, const float* x,
            float* columns) {
  if (rows == 0) return;
  Im2colKernel<<<GridForRows(rows, 9 * image.size()), kThreads, 0, stream>>>(rows, SizeOf(image), x,
                                                                             columns);
  CheckLaunch("a convolution's neighbourhoods");
}

void Col2im(cudaStream_t stream, std::size_t rows, const ImageSize& image, const float* columns,
            float* x) {
  if (rows == 0) return;
  Col2imKernel<<<GridForRows(rows, image.size()), kThreads, 0, stream>>>(rows, SizeOf(image),
                                                                         columns, x);
  CheckLaunch("a convolution's backward pass");
}

void BiasReluPool(cudaStream_t stream, std::size_t rows, const ImageSize& image, const float* x,
                  const float* bias, float* y, std::uint8_t* choice) {
  const std::size_t elements = image.height / 2 * (image.width / 2) * image.channels;
  if (rows == 0 || elements == 0) return;
  BiasReluPoolKernel<<<GridForRows(rows, elements), kThreads, 0, stream>>>(rows, SizeOf(image), x,
                                                                           bias, y, choice);
  CheckLaunch("pooling");
}

void UnpoolBackward(cudaStream_t stream, std::size_t rows, const ImageSize& image, const float* dy,
                    const std::uint8_t* choice, float* dx) {
  if (rows == 0) return;
  UnpoolBackwardKernel<<<GridForRows(rows, image.size()), kThreads, 0, stream>>>(
      rows, SizeOf(image), dy, choice, dx);
  CheckLaunch("pooling's backward pass");
}

void PoolReluBackward(cudaStream_t stream, std::size_t count, const std::uint8_t* choice,
                      float* delta) {
  if (count == 0) return;
  PoolReluBackwardKernel<<<GridFor(count), kThreads, 0, stream>>>(count, choice, delta);
  CheckLaunch("ReLU's backward pass");
}

}  // namespace lockstep::worker::cuda
