// A table of the choices of a job that exclude each other, and of those that stay the same for the
// whole job. It is used when a config is read, when a job starts or is resumed, and when its policy
// is exchanged. It is also used when a round's algorithm is chosen and when a worker begins.
// docs/reference/configuration.md shows it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/job_config.h"
#include "base/result.h"

namespace lockstep {

// Properties of a policy that other choices depend on, whatever its name.
struct PolicyTraits {
  std::string name = {};  // for people, as policy.name
  bool relaxed = false;   // contributions that a round closes without continue in the next one
  bool local = false;     // a round is local steps, then an average of the parameters
};

// NamedPolicy derives them from the name alone; only the loader of a plug-in knows more.
PolicyTraits NamedPolicy(const PolicySection& section);

// Facts that no config has. A caller that does not know one of them leaves the default, which
// excludes nothing.
struct Traits {
  PolicyTraits policy = {};
  std::uint32_t workers = 0;   // --workers
  std::string device = {};     // where this worker computes gradients; empty: on the CPU
  bool device_memory = false;  // the exchange works in that device's memory
  bool shapes = true;          // the worker's program gives the shapes of its tensors
  bool averages = false;       // running statistics travel with the gradients
};

// Returns kInvalid with one line, which names the first two choices of the table that exclude each
// other.
Status CheckTogether(const JobConfig& config, const Traits& traits);

// The reason why exchange.algorithm = auto can only be direct; empty: any algorithm goes with the
// other choices.
std::string WhyOnlyDirect(const JobConfig& config, const Traits& traits);

// The reason why the option `key` cannot go from one value to another, when the policy is exchanged
// or the job is resumed; empty: it can.
std::string_view WhyKept(std::string_view key, std::string_view before, std::string_view now);

// Both tables as Markdown, for docs/reference/configuration.md.
std::string CompatibilityReference();

}  // namespace lockstep
