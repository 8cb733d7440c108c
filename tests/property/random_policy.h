// A policy out of all that the registry knows.
#pragma once

#include <string>
#include <vector>

#include "base/job_config.h"
#include "base/random.h"
#include "policies/registry.h"

namespace lockstep {

inline PolicySection RandomPolicy(RandomStream* random, std::uint32_t workers) {
  const std::vector<std::string> closing = policies::ClosingRuleNames();
  const std::vector<std::string> work = policies::WorkRuleNames();
  PolicySection section;
  section.name =
      closing[random->NextBelow(closing.size())] + "+" + work[random->NextBelow(work.size())];
  if (random->NextBelow(8) == 0) section.name = "auto";
  const bool may_spare = workers > 1 && random->NextBelow(3) > 0;
  section.backup_workers = may_spare ? 1 : PolicySection::kAuto;
  section.deadline_min_contributors = section.partial_min_contributors = 1;
  section.flexrr_group_size = static_cast<std::uint32_t>(random->NextBelow(4));
  return section;
}

}  // namespace lockstep
