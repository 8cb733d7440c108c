#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/suggest.h"
#include "worker/data/cifar10.h"
#include "worker/data/dataset.h"
#include "worker/data/idx.h"
#include "worker/data/synthetic.h"

namespace lockstep::worker {
namespace {

Error Unknown(const char* key, const std::string& word, const std::vector<std::string>& known) {
  return {ErrorCode::kInvalid, NotOneOf(key, word, known)};
}

Result<std::unique_ptr<Dataset>> Open(const DataSection& config, std::uint64_t seed) {
  if (config.format == "synthetic") return MakeSynthetic(config, seed);
  if (config.format != "idx" && config.format != "cifar10") {
    return Unknown("data.format", config.format, {"idx", "cifar10", "synthetic"});
  }
  if (config.path.empty()) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("data.path: format {} needs the folder of its files", config.format)};
  }
  return config.format == "idx" ? OpenIdx(config.path) : OpenCifar10(config.path);
}

}  // namespace

Result<std::unique_ptr<Dataset>> OpenDataset(const DataSection& config, std::uint64_t seed) {
  Augmentation augmentation;
  if (config.augment == "shift" || config.augment == "shift-flip") {
    augmentation.shift = 2;
    augmentation.flip = config.augment == "shift-flip";
  } else if (config.augment != "none") {
    return Unknown("data.augment", config.augment, {"none", "shift", "shift-flip"});
  }
  auto dataset = Open(config, seed);
  if (dataset) (*dataset)->set_augmentation(augmentation);
  return dataset;
}

}  // namespace lockstep::worker
