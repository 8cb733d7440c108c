#include "base/sometimes.h"

namespace lockstep {
namespace {

// Set before main, by the branches of all objects.
constinit SometimesBranch* newest_branch = nullptr;

}  // namespace

SometimesBranch::SometimesBranch(const char* name) : name_(name), next_(newest_branch) {
  newest_branch = this;
}

std::map<std::string, std::uint64_t> SometimesBranch::All() {
  std::map<std::string, std::uint64_t> all;
  for (const SometimesBranch* branch = newest_branch; branch != nullptr; branch = branch->next_) {
    all[branch->name_] += branch->count_.load(std::memory_order_relaxed);
  }
  return all;
}

}  // namespace lockstep
