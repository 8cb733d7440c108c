#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/suggest.h"
#include "worker/models/architectures.h"
#include "worker/models/model.h"

namespace lockstep::worker {
namespace {

using Maker = Result<std::unique_ptr<Model>> (*)(const ModelSpec&, Compute&);

const std::vector<std::pair<std::string, Maker>>& Makers() {
  static const std::vector<std::pair<std::string, Maker>> makers = {
      {"softmax", MakeSoftmax}, {"mlp", MakeMlp}, {"cnn", MakeCnn}};
  return makers;
}

Error Invalid(std::string message) { return {ErrorCode::kInvalid, std::move(message)}; }

}  // namespace

Result<std::unique_ptr<Model>> MakeModel(const ModelSpec& spec, Compute& compute) {
  const ModelSection& config = spec.config;
  const auto& makers = Makers();
  const auto maker = std::find_if(makers.begin(), makers.end(),
                                  [&](const auto& entry) { return entry.first == config.name; });
  if (maker == makers.end()) {
    std::vector<std::string> known;
    for (const auto& entry : makers) known.push_back(entry.first);
    return Invalid(NotOneOf("model.name", config.name, known));
  }
  const std::vector<std::string> normalizations = {"none", "layer"};
  if (std::find(normalizations.begin(), normalizations.end(), config.normalization) ==
      normalizations.end()) {
    return Invalid(NotOneOf("model.normalization", config.normalization, normalizations));
  }
  if (!(config.dropout >= 0 && config.dropout < 1)) {
    return Invalid(fmt::format("model.dropout: {} is not in [0, 1)", config.dropout));
  }
  if (std::find(config.widths.begin(), config.widths.end(), 0u) != config.widths.end()) {
    return Invalid("model.widths: a layer of width 0");
  }
  if (spec.input.size() == 0 || spec.classes < 2) {
    return Invalid(fmt::format("data: samples of {} values in {} classes cannot be learnt from",
                               spec.input.size(), spec.classes));
  }
  return maker->second(spec, compute);
}

}  // namespace lockstep::worker
