#include "worker/trainer.h"

#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/log.h"
#include "worker/compute/cpu/cpu_compute.h"
#include "worker/data/dataset.h"
#include "worker/models/model.h"

namespace lockstep::worker {
namespace {

// Passes on what the backward pass has finished.
class FinalBlocks final : public BackwardObserver {
 public:
  explicit FinalBlocks(Session& session) : session_(session) {}
  void BlockFinal(std::uint32_t block) override { session_.BlockFinal(block); }

 private:
  Session& session_;
};

JobDescription Describe(const JobConfig& config, const Model& model, const Dataset& data) {
  JobDescription job;
  job.parameter_count = model.parameter_count();
  for (const ParameterBlock& block : model.blocks()) job.blocks.push_back(block.count);
  job.finish_order = model.finish_order();
  for (const NamedTensor& tensor : model.tensors())
    job.tensors.push_back({tensor.name, tensor.shape});
  job.initialize = [&model, seed = config.job.seed](std::span<float> parameters) {
    model.InitParameters(seed, parameters);
  };
  job.dataset_digest = data.digest();
  job.train_samples = data.size(Split::kTrain);
  job.test_samples = data.size(Split::kTest);
  return job;
}

}  // namespace

Status Train(Session& session) {
  const JobConfig& config = session.config();
  auto data = OpenDataset(config.data, config.job.seed);
  if (!data) return data.error();
  const Dataset& dataset = **data;
  auto compute = MakeCpuCompute();
  auto model = MakeModel(
      {.config = config.model, .input = dataset.shape(), .classes = dataset.classes()}, *compute);
  if (!model) return model.error();
  if (Status begun = session.Begin(Describe(config, **model, dataset)); !begun.ok()) return begun;

  FinalBlocks final_blocks(session);
  Batch batch;
  batch.seed = config.job.seed;
  std::vector<std::uint32_t> test_indices;
  for (;;) {
    const Work work = session.Next();
    if (work.kind == Work::Kind::kEnd) {
      spdlog::info("end of the job: {}", work.reason);
      if (work.failed) return Error{ErrorCode::kClosed, work.reason};
      return {};
    }
    if (work.kind == Work::Kind::kTrain) {
      batch.epoch = work.epoch.value;
      batch.first_position = work.range.from;
      dataset.FillBatch(Split::kTrain, work.samples, batch);
      const TrainResult result =
          (*model)->TrainUnit(work.parameters.data(), work.gradient.data(), batch,
                              work.last ? &final_blocks : nullptr, session.Cancelled());
      session.Done({.samples = result.samples, .loss_sum = result.loss_sum});
    } else {
      test_indices.resize(work.range.size());
      std::iota(test_indices.begin(), test_indices.end(),
                static_cast<std::uint32_t>(work.range.from));
      dataset.FillBatch(Split::kTest, test_indices, batch);
      const EvalResult result = (*model)->Evaluate(work.parameters.data(), batch);
      session.EvaluationDone(result.loss_sum, result.correct);
    }
  }
}

}  // namespace lockstep::worker
