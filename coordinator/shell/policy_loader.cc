#include "coordinator/shell/policy_loader.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "coordinator/shell/guarded_policy.h"
#include "policies/plugin.h"

namespace lockstep::coordinator {
namespace {

template <class Function>
Function* Symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

Result<policies::Policy> LoadPolicy(const PolicySection& section, std::uint32_t workers) {
  const auto error = [&section](std::string_view what) {
    return Error{ErrorCode::kInvalid, fmt::format("policy.plugin = {}: {}", section.plugin, what)};
  };
  if (section.plugin.empty()) {
    return Error{ErrorCode::kInvalid,
                 "policy.name = plugin: policy.plugin must name the shared library"};
  }
  // A name without a slash would be searched for in the system's folders.
  const std::string path =
      section.plugin.find('/') == std::string::npos ? "./" + section.plugin : section.plugin;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return error(fmt::format("cannot be loaded: {}", dlerror()));
  const auto version = Symbol<std::uint32_t()>(library, "lockstep_policy_plugin_version");
  const auto make = Symbol<void(const PolicySection*, std::uint32_t, policies::Policy*)>(
      library, "lockstep_policy_plugin_make");
  if (version == nullptr || make == nullptr) return error("is not a policy plug-in");
  if (version() != policies::kPluginVersion) {
    return error(fmt::format("is made for version {} of the plug-in interface, this is {}",
                             version(), policies::kPluginVersion));
  }
  policies::Policy policy;
  try {
    make(&section, workers, &policy);
    if (policy.name.empty() && policy.closing != nullptr && policy.work != nullptr) {
      policy.name = fmt::format("{}+{}", policy.closing->name(), policy.work->name());
    }
  } catch (...) {
    return error(fmt::format("threw: {}", WhatIsThrown()));
  }
  if (policy.closing == nullptr || policy.work == nullptr) {
    return error("gave no closing rule or no work rule");
  }
  if (policy.local) {
    return error("says that its rounds are of local steps, which only policy.name = local has");
  }
  return Guarded(std::move(policy));
}

}  // namespace lockstep::coordinator
