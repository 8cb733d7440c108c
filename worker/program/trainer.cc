#include "worker/program/trainer.h"

#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "worker/compute/devices.h"
#include "worker/data/batch_ahead.h"
#include "worker/data/dataset.h"
#include "worker/memory/exchange_memory.h"
#include "worker/models/model.h"
#include "worker/models/staged_model.h"

namespace lockstep::worker {
namespace {

// Passes on the blocks that the backward pass has finished.
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

// Computes runs of units on a device.
class Trainer {
 public:
  Trainer(Session& session, const Dataset& dataset, Compute& compute, Model& model,
          ExchangeOn exchange)
      : session_(session),
        model_(model),
        batches_(dataset, session.config().job.seed),
        final_blocks_(session) {
    if (compute.host_link() != nullptr) staged_.emplace(compute, model, exchange);
  }

  // It is null where the model writes the session's own memory.
  StagedModel* staged() { return staged_ ? &*staged_ : nullptr; }

  // kUnavailable: the machine has no room for a run of so many samples.
  Status TrainRun(const Work& work) {
    if (Status room = batches_.Reserve(work.samples.size()); !room) return room;
    const Batch& batch = batches_.Train(work.epoch.value, work.ranges, work.samples);
    const TrainResult result =
        staged_
            ? TrainStaged(work, batch)
            : model_.TrainUnit(work.parameters.data(), work.gradient.data(), batch,
                               work.tells_final ? &final_blocks_ : nullptr, session_.Cancelled());
    session_.Done({.samples = result.samples, .loss_sum = result.loss_sum});
    return {};
  }

  Status Evaluate(const Work& work) {
    if (Status room = batches_.Reserve(work.range.size()); !room) return room;
    test_indices_.resize(work.range.size());
    std::iota(test_indices_.begin(), test_indices_.end(),
              static_cast<std::uint32_t>(work.range.from));
    const Batch& batch = batches_.Test(test_indices_);
    const EvalResult result =
        staged_ ? staged_->Evaluate(work.parameters, work.parameters_version, batch)
                : model_.Evaluate(work.parameters.data(), batch);
    session_.EvaluationDone(result.loss_sum, result.correct);
    return {};
  }

 private:
  // While the device computes this run, the samples of the next one are prepared.
  TrainResult TrainStaged(const Work& work, const Batch& batch) {
    return staged_->TrainUnit(
        {.parameters = work.parameters,
         .version = work.parameters_version,
         .gradient = work.gradient,
         .first = work.first,
         .last = [this] { return session_.EndsPart(); }},
        batch, [this](std::uint32_t block) { session_.BlockFinal(block); },
        [&] {
          if (work.next_samples.empty()) return;
          model_.Prefetch(batches_.Prepare(work.epoch.value, work.next_ranges, work.next_samples));
        },
        session_.Cancelled());
  }

  Session& session_;
  Model& model_;
  BatchAhead batches_;
  FinalBlocks final_blocks_;
  std::optional<StagedModel> staged_;
  std::vector<std::uint32_t> test_indices_;
};

// The memory of the exchange of a worker that computes on this device; null: the host's.
std::shared_ptr<ExchangeMemory> MemoryOf(Compute& compute, const JobConfig& config) {
  if (config.exchange.memory == "host" || config.policy.local()) return nullptr;
  return compute.MakeExchangeMemory();
}

// The worker's progress.
struct Came {
  bool begun = false;   // the session's Begin is done
  bool to_end = false;  // the job's end, as the session has reported
};

// Objects on the device are destroyed before the device.
Status TrainJob(Compute& compute, Session& session, Came* came) {
  const JobConfig& config = session.config();
  auto data = OpenDataset(config.data, config.job.seed);
  if (!data) return data.error();
  const Dataset& dataset = **data;
  auto model = MakeModel(
      {.config = config.model, .input = dataset.shape(), .classes = dataset.classes()}, compute);
  if (!model) return model.error();
  JobDescription job = Describe(config, **model, dataset);
  job.memory = MemoryOf(compute, config);
  Trainer trainer(session, dataset, compute, **model,
                  job.memory ? ExchangeOn::kDevice : ExchangeOn::kHost);
  if (job.memory) {
    spdlog::info("computing on {}; gradients, parameters and optimizer state stay in its memory",
                 compute.name());
  } else if (StagedModel* staged = trainer.staged()) {
    spdlog::info("computing on {}; gradients and parameters are staged through the host's memory",
                 compute.name());
    job.collect = [staged](std::span<float> gradient) { staged->Collect(gradient); };
  }
  if (Status status = session.Begin(std::move(job)); !status.ok()) return status;
  came->begun = true;
  for (;;) {
    const Work work = session.Next();
    if (work.kind == Work::Kind::kEnd) {
      came->to_end = true;
      spdlog::info("end of the job: {}", work.reason);
      if (work.unfit) return Error{ErrorCode::kUnavailable, work.reason};
      if (work.failed) return Error{ErrorCode::kClosed, work.reason};
      if (work.final_parameters) {
        spdlog::info("this worker has the job's last parameters, SHA-256 {}",
                     work.params_digest.empty() ? "not taken" : work.params_digest);
      } else if (!work.left) {
        return Error{ErrorCode::kClosed,
                     fmt::format("the job has ended, and the parameters of this worker are not "
                                 "its last ones: {}",
                                 work.not_final)};
      }
      return {};
    }
    const Status done =
        work.kind == Work::Kind::kTrain ? trainer.TrainRun(work) : trainer.Evaluate(work);
    if (!done) return done;
  }
}

}  // namespace

Status Train(Session& session, const std::string& device) {
  return TrainOn(session, [&] { return MakeCompute(device, session.config().compute.precision); });
}

Status TrainOn(Session& session,
               const std::function<Result<std::unique_ptr<Compute>>()>& make_compute) {
  Came came;
  const Status status = [&]() -> Status {
    try {
      auto compute = make_compute();
      if (!compute) return compute.error();
      return TrainJob(**compute, session, &came);
    } catch (const DeviceError& error) {
      return Error{came.begun ? ErrorCode::kIo : ErrorCode::kInvalid, error.what()};
    }
  }();
  // People look first at the coordinator's log.
  if (!status && !came.to_end) session.Interrupt(status.error().message);
  return status;
}

}  // namespace lockstep::worker
