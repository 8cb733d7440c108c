#include "base/compatibility.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace lockstep {
namespace {

struct Facts {
  const JobConfig& config;
  const Traits& traits;
};

// An option of [exchange] that has one of `values`, or a fact that `trait` finds.
struct Feature {
  std::string_view key;     // empty: `values` describes it
  std::string_view values;  // separated by ", "
  std::string ExchangeSection::*option = nullptr;
  std::string (*trait)(const Facts& facts) = nullptr;  // its value; empty: it is not there

  // Its value; empty: the job does not have it.
  std::string Chosen(const Facts& facts) const {
    if (option == nullptr) return trait(facts);
    const std::string& value = facts.config.exchange.*option;
    const std::string list = fmt::format(", {}, ", values);
    return list.find(fmt::format(", {}, ", value)) == std::string::npos ? "" : value;
  }
};

std::string If(bool has, std::string value) { return has ? std::move(value) : std::string(); }

using Exchange = ExchangeSection;
constexpr Feature kEncryption = {"exchange.encryption", "on", &Exchange::encryption};
constexpr Feature kUcx = {"exchange.transport", "ucx", &Exchange::transport};
constexpr Feature kRounding = {"exchange.rounding", "stochastic", &Exchange::rounding};
constexpr Feature kFp32 = {"exchange.dtype", "fp32", &Exchange::dtype};
constexpr Feature k16Bits = {"exchange.dtype", "bf16, fp16", &Exchange::dtype};
constexpr Feature kCompression = {"exchange.compression", "topk, powersgd", &Exchange::compression};
constexpr Feature kTopk = {"exchange.compression", "topk", &Exchange::compression};
constexpr Feature kPowersgd = {"exchange.compression", "powersgd", &Exchange::compression};
constexpr Feature kRouted = {"exchange.algorithm", "ring, tree", &Exchange::algorithm};
constexpr Feature kHostMemory = {"exchange.memory", "host", &Exchange::memory};
constexpr Feature kConnections = {"exchange.connections", "2 and more", nullptr,
                                  [](const Facts& f) {
                                    const std::uint32_t count = f.config.exchange.connections;
                                    return If(count > 1, std::to_string(count));
                                  }};
constexpr Feature kAudit = {"audit.share", "above 0", nullptr, [](const Facts& f) {
                              const double share = f.config.audit.share;
                              return If(share > 0, fmt::format("{}", share));
                            }};
constexpr Feature kCustom = {"optimizer.name", "custom", nullptr, [](const Facts& f) {
                               return If(f.config.optimizer.custom(), "custom");
                             }};
constexpr Feature kReplicas = {
    "optimizer.replicas", "N below --workers", nullptr, [](const Facts& f) {
      const OptimizerSection& optimizer = f.config.optimizer;
      return If(optimizer.Shards(f.traits.workers) > 0,
                fmt::format("{} with --workers {}", optimizer.replicas, f.traits.workers));
    }};
constexpr Feature kClip = {"optimizer.clip", "above 0", nullptr, [](const Facts& f) {
                             const double clip = f.config.optimizer.clip;
                             return If(clip > 0, fmt::format("{}", clip));
                           }};
constexpr Feature kRelaxed = {"policy.name", "async", nullptr, [](const Facts& f) {
                                return If(f.traits.policy.relaxed, f.traits.policy.name);
                              }};
constexpr Feature kLocal = {"policy.name", "local", nullptr, [](const Facts& f) {
                              return If(f.traits.policy.local, f.traits.policy.name);
                            }};
constexpr Feature kNotSynchronous = {"policy.name", "async, local", nullptr, [](const Facts& f) {
                                       const PolicyTraits& policy = f.traits.policy;
                                       return If(policy.relaxed || policy.local, policy.name);
                                     }};
constexpr Feature kDevice = {"", "gradients computed on a GPU", nullptr, [](const Facts& f) {
                               const std::string& device = f.traits.device;
                               return If(!device.empty(), "gradients computed on " + device);
                             }};
constexpr Feature kDeviceMemory = {"", "gradients in a GPU's memory", nullptr, [](const Facts& f) {
                                     return If(f.traits.device_memory,
                                               "gradients in the memory of " + f.traits.device);
                                   }};
constexpr Feature kNoShapes = {"", "tensors without shapes", nullptr, [](const Facts& f) {
                                 return If(!f.traits.shapes, "tensors without shapes");
                               }};
constexpr Feature kAverages = {"", "running statistics of norms", nullptr, [](const Facts& f) {
                                 return If(f.traits.averages, "running statistics of norms");
                               }};

// {0} and {1} stand for the two choices, {2} for the second one's value.
struct Row {
  const Feature& first;
  const Feature& second;
  std::string_view line;
};

constexpr std::array kRows = {
    Row{kEncryption, kUcx, "{0} and {1}: UCX does not encrypt, take tcp or auto"},
    Row{kConnections, kUcx, "{0} and {1}: UCX chooses its connections itself, take tcp or auto"},
    Row{kCompression, kRelaxed,
        "{0} and {1}: compression adds the rest of a contribution to the worker's next gradient "
        "once the commit is known, and {2} does not wait for that"},
    Row{kAudit, kCompression,
        "{0} and {1}: a contribution has the rest of the worker's last one in it, and no other "
        "worker has that"},
    Row{kAudit, kNotSynchronous,
        "{0} and {1}: no two workers compute a unit with the same parameters"},
    Row{kRounding, kFp32, "{0} and {1}: nothing is rounded to 16 bits, take bf16 or fp16"},
    Row{kRounding, kCompression,
        "{0} and {1}: compression adds the error of rounding to the worker's next gradient, take "
        "nearest"},
    Row{kRouted, k16Bits,
        "{0} and {1}: partial sums would be rounded at each worker, take fp32 or direct"},
    Row{kRouted, kCompression,
        "{0} and {1}: compressed sums go the direct way only, take none or direct"},
    Row{kRouted, kNotSynchronous, "{0} and {1}: it takes direct"},
    Row{kCustom, kNotSynchronous,
        "{0} and {1}: the workers' program makes updates of synchronous rounds only"},
    Row{kReplicas, kNotSynchronous, "{0}: {1} needs all of the state at each worker"},
    Row{kReplicas, kCustom, "{0}: {1} updates all parameters at each worker"},
    Row{kReplicas, k16Bits, "{0}: exchange.dtype has to be fp32"},
    Row{kReplicas, kCompression, "{0}: exchange.compression has to be none"},
    Row{kReplicas, kRouted, "{0}: exchange.algorithm has to be direct"},
    Row{kPowersgd, kNoShapes, "{0} needs the shapes of the tensors"},
    Row{kLocal, kDevice,
        "{0} and {1}: local steps are taken on the CPU, leave --device (in PyTorch the model) "
        "there"},
    Row{kCompression, kDeviceMemory,
        "{0} and {1}: compression is for gradients in the host's memory, take none "
        "(lockstep-worker: or exchange.memory = host)"},
    Row{kHostMemory, kDeviceMemory, "{0} and {1}: leave it at auto"},
    Row{k16Bits, kAverages,
        "{0} would round running statistics of norms, which travel with gradients: use fp32"},
    Row{kTopk, kAverages,
        "{0} would leave out running statistics of norms, which travel with gradients: use none"},
    Row{kClip, kAverages,
        "{0} would clip running statistics of norms, which travel with gradients: set it to 0 (in "
        "PyTorch give clip_grad_norm to job.prepare)"},
};

// A job has this value from its start to its end, or never. Other values may be joined to it by +.
struct Kept {
  std::string_view key;
  std::string_view value;
  std::string_view reason;

  bool In(std::string_view text) const { return text.substr(0, text.find('+')) == value; }
};

constexpr std::array kKept = {
    Kept{"policy.name", "local", "a job has local rounds from its start to its end, or never"},
    Kept{"exchange.compression", "powersgd",
         "with powersgd the factors of the last rounds are part of the state"},
};

std::string InWords(const Feature& feature, std::string_view value) {
  return feature.key.empty() ? std::string(value) : fmt::format("{} = {}", feature.key, value);
}

// The columns name both choices already.
std::string_view Reason(std::string_view line) {
  for (const std::string_view names : {"{0} and {1}: ", "{0}: "}) {
    if (line.starts_with(names)) return line.substr(names.size());
  }
  return line;
}

std::string InDocs(const Feature& feature) {
  return feature.key.empty() ? std::string(feature.values)
                             : fmt::format("`{}`: {}", feature.key, feature.values);
}

}  // namespace

PolicyTraits NamedPolicy(const PolicySection& section) {
  return {.name = section.name, .relaxed = section.name == "async", .local = section.local()};
}

Status CheckTogether(const JobConfig& config, const Traits& traits) {
  const Facts facts{config, traits};
  for (const Row& row : kRows) {
    const std::string first = row.first.Chosen(facts);
    if (first.empty()) continue;
    const std::string second = row.second.Chosen(facts);
    if (second.empty()) continue;
    return Error{ErrorCode::kInvalid, fmt::format(fmt::runtime(row.line), InWords(row.first, first),
                                                  InWords(row.second, second), second)};
  }
  return {};
}

std::string WhyOnlyDirect(const JobConfig& config, const Traits& traits) {
  for (const Row& row : kRows) {
    if (&row.first != &kRouted && &row.second != &kRouted) continue;
    const Feature& other = &row.first == &kRouted ? row.second : row.first;
    const std::string value = other.Chosen({config, traits});
    if (!value.empty()) return InWords(other, value) + " takes it";
  }
  return "";
}

std::string_view WhyKept(std::string_view key, std::string_view before, std::string_view now) {
  for (const Kept& kept : kKept) {
    if (kept.key == key && kept.In(before) != kept.In(now)) return kept.reason;
  }
  return "";
}

std::string CompatibilityReference() {
  std::string text =
      "\n## What does not go together\n\n"
      "A job that has both choices of a row is refused with one line and status 2. A policy of a "
      "plug-in counts as `async` if its rounds are relaxed. `exchange.algorithm = auto` takes "
      "`direct` where `ring` and `tree` are refused.\n\n"
      "| This | Not with | Why |\n|---|---|---|\n";
  for (const Row& row : kRows) {
    text += fmt::format(
        "| {} | {} | {} |\n", InDocs(row.first), InDocs(row.second),
        fmt::format(fmt::runtime(Reason(row.line)), "it", "the other one", row.second.values));
  }
  text +=
      "\nA job has these choices from its start to its end, or never. Neither an exchange of the "
      "policy nor `--resume` can change them.\n\n"
      "| Choice | Why |\n|---|---|\n";
  for (const Kept& kept : kKept) {
    text += fmt::format("| `{} = {}` | {} |\n", kept.key, kept.value, kept.reason);
  }
  return text;
}

}  // namespace lockstep
