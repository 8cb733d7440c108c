// Models, parameters and batches for tests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "worker/compute/cpu/cpu_compute.h"
#include "worker/models/model.h"

namespace lockstep::worker {

inline ModelSpec Spec(const std::string& name, std::vector<std::uint32_t> widths, ImageShape input,
                      double dropout = 0, const std::string& normalization = "none") {
  ModelSpec spec;
  spec.config.name = name;
  spec.config.widths = std::move(widths);
  spec.config.dropout = dropout;
  spec.config.normalization = normalization;
  spec.input = input;
  spec.classes = 5;
  return spec;
}

inline Batch RandomBatch(const ModelSpec& spec, std::size_t samples, std::uint64_t key = 0) {
  RandomStream random(77, key);
  Batch batch;
  batch.seed = 3;
  batch.epoch = 2;
  batch.first_position = 40;
  batch.samples = samples;
  for (std::size_t i = 0; i < samples * spec.input.size(); ++i) {
    batch.inputs.push_back(random.NextUniform() * 4 - 2);
  }
  for (std::size_t i = 0; i < samples; ++i) {
    batch.labels.push_back(static_cast<std::uint16_t>(random.NextBelow(spec.classes)));
  }
  return batch;
}

// Samples from .. to of a batch, at their positions.
inline Batch Part(const ModelSpec& spec, const Batch& batch, std::size_t from, std::size_t to) {
  Batch part = batch;
  const auto features = static_cast<std::ptrdiff_t>(spec.input.size());
  const auto first = static_cast<std::ptrdiff_t>(from), last = static_cast<std::ptrdiff_t>(to);
  part.first_position += from;
  part.samples = to - from;
  part.inputs.assign(batch.inputs.begin() + first * features,
                     batch.inputs.begin() + last * features);
  part.labels.assign(batch.labels.begin() + first, batch.labels.begin() + last);
  return part;
}

struct ModelSetup {
  explicit ModelSetup(const ModelSpec& model_spec) : spec(model_spec), compute(MakeCpuCompute()) {
    auto made = MakeModel(spec, *compute);
    LOCKSTEP_CHECK(made.ok(), "{}", made.error().message);
    model = *std::move(made);
    parameters.resize(model->parameter_count());
    model->InitParameters(1, parameters);
    // Biases away from zero, so that they are seen to be used.
    RandomStream random(8);
    for (float& p : parameters) p += (random.NextUniform() - 0.5f) * 0.2f;
  }
  std::vector<float> Gradient(const Batch& batch, TrainResult* result = nullptr) {
    std::vector<float> gradient(parameters.size());
    const std::atomic<bool> cancelled{false};
    const TrainResult got =
        model->TrainUnit(parameters.data(), gradient.data(), batch, nullptr, cancelled);
    if (result != nullptr) *result = got;
    return gradient;
  }

  ModelSpec spec;
  std::unique_ptr<Compute> compute;
  std::unique_ptr<Model> model;
  std::vector<float> parameters;
};

}  // namespace lockstep::worker
