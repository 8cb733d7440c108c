// A policy of the user's own: a shared library, named in policy.plugin, for policy.name = plugin
// (coordinator/shell/policy_loader.h loads it).
// It is built against the installed headers of the same version and defines
//
//   LOCKSTEP_POLICY_PLUGIN(section, workers) { return lockstep::policies::Policy{...}; }
//
// once; examples/policy_plugin.cc is a complete one. It runs in the coordinator's process and in
// the simulator, on one thread. It must be pure. An exception from a rule ends the job.
#pragma once

#include <cstdint>

#include "base/job_config.h"
#include "policies/policy.h"

namespace lockstep::policies {

// Changes with this header, policy.h and job_config.h.
inline constexpr std::uint32_t kPluginVersion = 6;

}  // namespace lockstep::policies

// NOLINTBEGIN(bugprone-macro-parentheses): the arguments name parameters
#define LOCKSTEP_POLICY_PLUGIN(section, workers)                                                 \
  static lockstep::policies::Policy LockstepMakePolicy(const lockstep::PolicySection& section,   \
                                                       std::uint32_t workers);                   \
  extern "C" std::uint32_t lockstep_policy_plugin_version() {                                    \
    return lockstep::policies::kPluginVersion;                                                   \
  }                                                                                              \
  extern "C" void lockstep_policy_plugin_make(const lockstep::PolicySection* s, std::uint32_t w, \
                                              lockstep::policies::Policy* out) {                 \
    *out = LockstepMakePolicy(*s, w);                                                            \
  }                                                                                              \
  static lockstep::policies::Policy LockstepMakePolicy(                                          \
      [[maybe_unused]] const lockstep::PolicySection& section,                                   \
      [[maybe_unused]] std::uint32_t workers)
// NOLINTEND(bugprone-macro-parentheses)
