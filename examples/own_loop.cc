// A training loop of one's own on Lockstep: linear regression, fifty lines, no model or data of the
// framework.
//
// clang-format off
//   cmake -S examples -B build/examples -DCMAKE_PREFIX_PATH=<where lockstep is installed>
//   cmake --build build/examples
//   lockstep-coordinator --listen 127.0.0.1:7070 --workers 2 --run-dir runs/own --job.rounds=200 --optimizer.lr=0.05 &
//   build/examples/own_loop 127.0.0.1:7070 &
//   build/examples/own_loop 127.0.0.1:7070
// clang-format on

#include <algorithm>
#include <cstdio>
#include <span>

#include "base/random.h"
#include "worker/runtime/session.h"

namespace {

constexpr std::size_t kFeatures = 16;
constexpr std::size_t kSamples = 4096;

// Sample i: features out of a counter-based generator, target = a fixed linear function of them.
float Feature(std::uint32_t sample, std::size_t feature) {
  return lockstep::RandomStream(7, sample, feature).NextUniform() - 0.5f;
}
float Target(std::uint32_t sample) {
  float y = 0;
  for (std::size_t f = 0; f < kFeatures; ++f) y += static_cast<float>(f) * Feature(sample, f);
  return y;
}

}  // namespace

int main(int argc, char** argv) {
  using lockstep::worker::JobDescription, lockstep::worker::Session,
      lockstep::worker::SessionOptions;
  using lockstep::worker::UnitResult, lockstep::worker::Work;
  if (argc != 2) {
    std::fprintf(stderr, "usage: own_loop HOST:PORT\n");
    return 2;
  }
  SessionOptions options;
  options.coordinator = argv[1];
  auto session = Session::Join(options);
  if (!session) {
    std::fprintf(stderr, "own_loop: %s\n", session.error().message.c_str());
    return 2;
  }

  JobDescription job;
  job.parameter_count = kFeatures;
  job.blocks = {kFeatures};  // one run of parameters, whose gradient is final at once
  job.finish_order = {0};
  job.initialize = [](std::span<float> parameters) {
    std::fill(parameters.begin(), parameters.end(), 0.0f);
  };
  job.dataset_digest = "linear-16-4096";  // the same for everybody who trains on the same samples
  job.train_samples = kSamples;
  if (auto begun = (*session)->Begin(job); !begun.ok()) {
    std::fprintf(stderr, "own_loop: %s\n", begun.error().message.c_str());
    return 2;
  }

  for (;;) {
    const Work work = (*session)->Next();
    if (work.kind == Work::Kind::kEnd) {
      std::printf("end: %s\n", work.reason.c_str());
      if (!work.final_parameters) std::printf("not the last ones: %s\n", work.not_final.c_str());
      return work.final_parameters || work.left ? 0 : 1;
    }
    if (work.kind == Work::Kind::kEvaluate) {
      (*session)->EvaluationDone(0, 0);  // this job has no test samples
      continue;
    }
    // A run of units: add the gradient sum of its samples to work.gradient.
    UnitResult result;
    for (std::uint32_t sample : work.samples) {
      float error = -Target(sample);
      for (std::size_t f = 0; f < kFeatures; ++f) error += work.parameters[f] * Feature(sample, f);
      for (std::size_t f = 0; f < kFeatures; ++f) work.gradient[f] += error * Feature(sample, f);
      result.loss_sum += 0.5 * static_cast<double>(error) * static_cast<double>(error);
      ++result.samples;
    }
    (*session)->Done(result);
  }
}
