// What a GPU makes of the parts, as JSON on standard output: the fused sum against a plain copy on
// the device, and a training step of an MLP. tools/experiments/gpu-check runs it and compares.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "worker/compute/cuda/cuda_compute.h"
#include "worker/compute/cuda/handles.h"
#include "worker/compute/cuda/weighted_sum.h"
#include "worker/models/model.h"
#include "worker/models/staged_model.h"

namespace lockstep::worker {
namespace {

using cuda::Check;
using Json = nlohmann::ordered_json;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double Seconds(const std::function<void()>& run) {
  const auto from = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
}

// Device time of what `ask` asks for on the stream, after a run to warm up.
double DeviceSeconds(const cuda::Stream& stream, const std::function<void()>& ask) {
  cudaEvent_t from = nullptr, to = nullptr;
  Check(cudaEventCreate(&from), "timing");
  Check(cudaEventCreate(&to), "timing");
  ask();
  std::vector<double> times;
  for (int i = 0; i < 15; ++i) {
    Check(cudaEventRecord(from, stream.get()), "timing");
    ask();
    Check(cudaEventRecord(to, stream.get()), "timing");
    Check(cudaEventSynchronize(to), "timing");
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, from, to), "timing");
    times.push_back(static_cast<double>(milliseconds) / 1000);
  }
  cudaEventDestroy(from);
  cudaEventDestroy(to);
  return Median(times);
}

// Bytes read and written, in a second.
Json Reductions() {
  constexpr std::size_t kFloats = std::size_t{64} << 20;
  constexpr std::size_t kBytes = kFloats * sizeof(float);
  constexpr std::size_t kMost = 16;
  cuda::Stream stream;
  std::vector<std::unique_ptr<cuda::DeviceMemory>> memory;
  std::vector<Input> inputs;
  for (std::size_t i = 0; i <= kMost; ++i) {
    memory.push_back(std::make_unique<cuda::DeviceMemory>());
    auto* data = reinterpret_cast<float*>(memory.back()->Need(kBytes));
    Check(cudaMemsetAsync(data, 1, kBytes, stream.get()), "filling");
    inputs.push_back({data, 0.25f});
  }
  auto* out = const_cast<float*>(inputs.back().data);
  inputs.pop_back();
  const double copy =
      2 * kBytes / DeviceSeconds(stream, [&] {
        Check(cudaMemcpyAsync(out, inputs[0].data, kBytes, cudaMemcpyDeviceToDevice, stream.get()),
              "copying");
      });
  cuda::PinnedMemory flag;
  cuda::SumBatch sums(stream.get(), reinterpret_cast<unsigned*>(flag.Need(sizeof(unsigned))));
  Json rows = Json::array();
  for (const std::size_t count : {std::size_t{2}, std::size_t{4}, std::size_t{8}, kMost}) {
    const double sum = static_cast<double>(count + 1) * kBytes / DeviceSeconds(stream, [&] {
                         sums.Add(std::span(inputs).first(count), out, kFloats);
                         sums.Ask();
                       });
    rows.push_back({{"inputs", count},
                    {"mib_each", kBytes >> 20},
                    {"gb_per_s", sum / 1e9},
                    {"copy_gb_per_s", copy / 1e9},
                    {"of_copy", sum / copy}});
  }
  return rows;
}

// Forward and backward pass of 4096 samples through 4096-4096-4096-10.
Json Step(const std::string& precision) {
  constexpr std::size_t kSize = 4096;
  ModelSpec spec;
  spec.config.name = "mlp";
  spec.config.widths = {kSize, kSize};
  spec.input = {1, 64, 64};
  spec.classes = 10;
  auto made = MakeCudaCompute(0, precision);
  LOCKSTEP_CHECK(made.ok(), "{}", made.error().message);
  Compute& compute = **made;
  auto model = MakeModel(spec, compute);
  LOCKSTEP_CHECK(model.ok(), "{}", model.error().message);
  std::vector<float> host((*model)->parameter_count());
  (*model)->InitParameters(1, host);
  DeviceArray<float> parameters(compute, host.size()), gradient(compute, host.size());
  compute.host_link()->Upload(host, parameters.get());
  Batch batch;
  batch.samples = kSize;
  RandomStream random(3);
  for (std::size_t i = 0; i < kSize * kSize; ++i)
    batch.inputs.push_back(random.NextUniform() - 0.5f);
  for (std::size_t i = 0; i < kSize; ++i) {
    batch.labels.push_back(static_cast<std::uint16_t>(random.NextBelow(spec.classes)));
  }
  const std::atomic<bool> cancelled{false};
  const auto step = [&] {
    static_cast<void>(
        (*model)->TrainUnit(parameters.get(), gradient.get(), batch, nullptr, cancelled));
  };
  std::vector<double> resident, staged;
  for (int i = 0; i < 15; ++i) {
    (*model)->Prefetch(batch);
    compute.TakeLossSums();  // the samples are there
    const double seconds = Seconds(step);
    const double with_staging = Seconds(step);
    if (i < 3) continue;  // to warm up
    resident.push_back(seconds);
    staged.push_back(with_staging);
  }
  // Two products for each layer forward, one backward for weights, one for inputs but the first.
  const double flops = 2.0 * kSize * kSize * kSize * (2 + 2 + 1) + 2.0 * kSize * kSize * 10 * 3;
  return {{"precision", precision},
          {"step_ms", Median(resident) * 1e3},
          {"tflop_per_s", flops / Median(resident) / 1e12},
          {"step_with_samples_from_host_ms", Median(staged) * 1e3}};
}

int Run() {
  if (const auto count = CudaDeviceCount(); !count) {
    std::fprintf(stderr, "gpu_bench: %s\n", count.error().message.c_str());
    return 2;
  }
  cudaDeviceProp properties{};
  Check(cudaGetDeviceProperties(&properties, 0), "asking for the device's name");
  Json all = {{"device", properties.name}, {"weighted_sum", Reductions()}};
  for (const char* precision : {"fp32", "tf32", "bf16"}) all["mlp_step"].push_back(Step(precision));
  std::printf("%s\n", all.dump(2).c_str());
  return 0;
}

}  // namespace
}  // namespace lockstep::worker

int main() {
  try {
    return lockstep::worker::Run();
  } catch (const lockstep::worker::DeviceError& error) {
    std::fprintf(stderr, "gpu_bench: %s\n", error.what());
    return 1;
  }
}
