// The program's description of the model and the data that it trains, and a check for what of that
// cannot be. The coordinator would close the connection, or no checkpoint could hold it. Called in
// the compute thread; errors are ErrorCode::kInvalid, in words for who wrote the program.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/messages.h"
#include "base/result.h"
#include "worker/layout/factored.h"
#include "worker/optimizer/parameter_group.h"

namespace lockstep::worker {

class ExchangeMemory;

// The description of what is trained, as far as the exchange must know it.
struct JobDescription {
  std::uint64_t parameter_count = 0;  // FP32 values in model order
  // Sizes of consecutive runs of parameters, in model order, whose gradients become final together.
  // The backward pass is expected to finish them in `finish_order` (indices into `blocks`), in
  // which buckets are laid out. Where it finishes them otherwise, what is final behind what is not
  // waits.
  std::vector<std::uint64_t> blocks;
  std::vector<std::uint32_t> finish_order;
  // Names and shapes of the parameters, in model order, for checkpoints. Optional.
  std::vector<TensorInfo> tensors;
  // Called at most once, in a new job; must give the same values on every worker, but see
  // `own_parameters`.
  std::function<void(std::span<float>)> initialize;
  // Of those values, to tell whether they are the same; empty where they come from the job's seed.
  std::string initial_digest;
  // They are whatever they are, as drawn without a seed: the job begins with those of the worker
  // with the lowest id. The same on every worker, which is checked.
  bool own_parameters = false;
  // Optional, for a trainer that keeps the gradient sum elsewhere, as on a GPU, and writes it to
  // Work::gradient only where EndsPart says so. Called by Next or Done, with that memory, when a
  // contribution ends otherwise. Then its would-be last units were taken back after the sum was
  // begun, or the run was paced. With it the memory is not zeroed beforehand.
  std::function<void(std::span<float>)> collect;
  // Optional, for a trainer that computes in the memory of a device: where the gradients, the
  // parameters and the optimizer's state are to be. Work::parameters and Work::gradient then lie
  // there, for the device alone to read and write. The gradient is not zeroed beforehand, and is
  // complete on the device when Done or BlockFinal is called. Likewise all that an update changes
  // is complete there at UpdateDone.
  std::shared_ptr<ExchangeMemory> memory;
  // With optimizer.name = custom the program makes the updates itself (Work::Kind::kUpdate). It
  // keeps so many times the parameters' size of state, zero before the first update, the same on
  // every worker. With nullopt it cannot, and Begin refuses such a job. Without that name it does
  // not matter.
  std::optional<std::uint32_t> update_state_tensors;
  // Parameters that the job's own rules update with a rate, weight decay or momentum of their own.
  // Together parameter_count; empty: all are alike. The same on every worker, which is checked.
  ParameterGroups groups = {};
  // The program asks for the ends of epochs (Work::Kind::kEpochEnd).
  bool epoch_ends = false;
  // Some parameters are running statistics: they travel with the gradients, as they are.
  bool averages = false;
  // The most that this worker computes at once, however much is given to it. The bound of samples
  // keeps its memory enough; of the bound of units, 1 makes each a run of its own. A unit is never
  // divided; where job.units is auto it has no more samples than any worker's bound. Another
  // worker's may be another.
  RunBound run_bound;
  // The cost of each training sample beside the others, as its length. Work is shared out by it
  // where the policy moves work (flexrr, balance, auto). Only who computes what depends on it.
  // Empty: all cost the same, or Session::TellCosts says it. At least 0, and not all 0.
  std::vector<float> costs = {};
  // The most that a run costs, as a batch that is padded: its samples times the cost of the dearest
  // one. A unit is never divided. Until the costs of an epoch are told each unit is a run. This
  // worker's own, as run_bound. 0: no bound; not below 0.
  double max_run_cost = 0;
  // The samples. Workers whose digests differ cannot be in one job. Other facts that must be the
  // same may stand behind that of the data, each after "; ": the message names what differs.
  std::string dataset_digest;
  std::uint64_t train_samples = 0;
  std::uint64_t test_samples = 0;
};

// All that can be told without the optimizer. `custom`: the program makes the updates
// (optimizer.name).
Status CheckDescription(const JobDescription& description, bool custom);

// The tensors' names, beside those of the optimizer's state: in a checkpoint a tensor of it is
// called optimizer.STATE.NAME (coordinator/checkpoint/checkpoint_reader.h).
Status CheckNames(const std::vector<TensorInfo>& tensors,
                  const std::vector<std::string>& state_names);

// Those that have rows and columns, with where their values begin among the parameters.
std::vector<Matrix> MatricesOf(const std::vector<TensorInfo>& tensors);

}  // namespace lockstep::worker
