#include "worker/runtime/job_description.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "base/ini.h"
#include "transport/control/codec.h"
#include "worker/runtime/epoch_costs.h"

namespace lockstep::worker {
namespace {

namespace control = transport::control;

// Of an update that the program makes: more than any optimizer keeps.
constexpr std::uint32_t kMostStateTensors = 256;

Error Invalid(std::string what) { return {ErrorCode::kInvalid, std::move(what)}; }

Error WrongTensors(const JobDescription& description) {
  return Invalid(fmt::format("the tensors have not the {} values of the model's parameters",
                             description.parameter_count));
}

Status CheckTensors(const JobDescription& description) {
  if (description.parameter_count == 0) return Invalid("a model without parameters");
  std::uint64_t left = description.parameter_count;
  for (const TensorInfo& tensor : description.tensors) {
    std::uint64_t values = 1;
    for (const std::uint64_t extent : tensor.shape) {
      values = extent == 0 || values <= left / extent ? values * extent : left + 1;
    }
    if (values > left) return WrongTensors(description);
    left -= values;
  }
  return description.tensors.empty() || left == 0 ? Status() : WrongTensors(description);
}

Status CheckGroups(const JobDescription& description) {
  if (description.groups.empty()) return {};
  std::uint64_t parameters = 0;
  for (const GroupRun& run : description.groups) parameters += run.parameters;
  if (parameters == description.parameter_count) return {};
  return Invalid(fmt::format("parameter groups of {} in a model of {}", parameters,
                             description.parameter_count));
}

// With what the groups have put behind the digest: cut, it would not tell workers apart.
Status CheckData(const JobDescription& description) {
  if (description.dataset_digest.size() > control::kMaxTextBytes) {
    return Invalid(fmt::format("the digest of the data has {} bytes, of at most {}",
                               description.dataset_digest.size(), control::kMaxTextBytes));
  }
  if (description.train_samples > msg::kMaxSamples || description.test_samples > msg::kMaxSamples) {
    return Invalid(fmt::format("{} training samples and {} test samples, of at most {} each",
                               description.train_samples, description.test_samples,
                               msg::kMaxSamples));
  }
  return {};
}

}  // namespace

Status CheckDescription(const JobDescription& description, bool custom) {
  if (Status tensors = CheckTensors(description); !tensors) return tensors;
  if (Status groups = CheckGroups(description); !groups) return groups;
  if (Status data = CheckData(description); !data) return data;
  if (!description.costs.empty()) {
    if (Status costs = CheckCosts(description.costs, description.train_samples); !costs) {
      return costs;
    }
  }
  if (!std::isfinite(description.max_run_cost) || description.max_run_cost < 0) {
    return Invalid(
        fmt::format("a run may cost {}: it is a number, and at least 0", description.max_run_cost));
  }
  const std::uint32_t state = description.update_state_tensors.value_or(0);
  if (!custom || state <= kMostStateTensors) return {};
  return Invalid(
      fmt::format("{} times the parameters' size of state for the program's updates, and {} is the "
                  "most",
                  state, kMostStateTensors));
}

Status CheckNames(const std::vector<TensorInfo>& tensors,
                  const std::vector<std::string>& state_names) {
  if (tensors.size() > control::kMaxTensors) {
    return Invalid(fmt::format("{} tensors, of at most {}", tensors.size(), control::kMaxTensors));
  }
  std::set<std::string> names;
  for (const TensorInfo& tensor : tensors) {
    const std::string& name = tensor.name;
    if (name.empty() || name.size() > control::kMaxTextBytes || !IsPrintable(name)) {
      return Invalid(fmt::format("a tensor is named {}: expected 1 to {} bytes of printable text",
                                 Quoted(name), control::kMaxTextBytes));
    }
    if (name == "__metadata__") {
      return Invalid("a tensor is named __metadata__, which is no tensor in a checkpoint");
    }
    if (!names.insert(name).second) {
      return Invalid(fmt::format("two tensors are named {}", Quoted(name)));
    }
    if (tensor.shape.size() > control::kMaxDimensions) {
      return Invalid(fmt::format("the tensor {} has {} dimensions, of at most {}", Quoted(name),
                                 tensor.shape.size(), control::kMaxDimensions));
    }
  }
  for (const std::string& state : state_names) {
    for (const TensorInfo& tensor : tensors) {
      const std::string name = fmt::format("optimizer.{}.{}", state, tensor.name);
      if (!names.contains(name)) continue;
      return Invalid(fmt::format(
          "a tensor is named {}, as the optimizer's state of another one is in a checkpoint",
          Quoted(name)));
    }
  }
  return {};
}

std::vector<Matrix> MatricesOf(const std::vector<TensorInfo>& tensors) {
  std::vector<Matrix> matrices;
  std::uint64_t first = 0;
  for (const TensorInfo& tensor : tensors) {
    std::uint64_t values = 1;
    for (const std::uint64_t extent : tensor.shape) values *= extent;
    matrices.push_back(MatrixOf(first, tensor.shape));
    if (matrices.back().rows == 0) matrices.pop_back();
    first += values;
  }
  return matrices;
}

}  // namespace lockstep::worker
