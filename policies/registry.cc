#include "policies/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/suggest.h"
#include "policies/async.h"
#include "policies/auto.h"
#include "policies/backup.h"
#include "policies/backup_auto.h"
#include "policies/balance.h"
#include "policies/deadline.h"
#include "policies/epoch_end.h"
#include "policies/flexrr.h"
#include "policies/full.h"
#include "policies/lasting.h"
#include "policies/partial.h"
#include "policies/runs.h"
#include "policies/work_none.h"

namespace lockstep::policies {
namespace {

struct ClosingEntry {
  std::string_view name;
  bool leaves_out;  // workers or units, so runs are short where that is likely
  Result<std::unique_ptr<ClosingRule>> (*make)(const PolicySection&, std::uint32_t workers);
};

struct WorkEntry {
  std::string_view name;
  bool moves;  // units within a round
  std::unique_ptr<WorkRule> (*make)(const PolicySection&);
};

// Whole policies, not joined with anything.
struct PolicyEntry {
  std::string_view name;
  Result<Policy> (*make)(const PolicySection&, std::uint32_t workers, PluginMaker plugin);
};

Result<std::unique_ptr<ClosingRule>> MakeFullRule(const PolicySection&, std::uint32_t) {
  return MakeFull();
}

Result<std::unique_ptr<ClosingRule>> MakeBackupRule(const PolicySection& section,
                                                    std::uint32_t workers) {
  if (section.backup_workers == PolicySection::kAuto) return MakeBackupAuto();
  if (section.backup_workers >= workers) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("backup.workers = {} must be less than the {} workers of the job",
                             section.backup_workers, workers)};
  }
  return MakeBackup(section.backup_workers);
}

Result<std::uint32_t> LeastContributors(std::string_view key, std::uint32_t configured,
                                        std::uint32_t workers) {
  if (configured > workers) {
    return Error{
        ErrorCode::kInvalid,
        fmt::format("{} = {} must be at most the {} workers of the job", key, configured, workers)};
  }
  return configured > 0 ? configured : (workers + 1) / 2;
}

Result<std::unique_ptr<ClosingRule>> MakeDeadlineRule(const PolicySection& section,
                                                      std::uint32_t workers) {
  auto least =
      LeastContributors("deadline.min_contributors", section.deadline_min_contributors, workers);
  if (!least) return least.error();
  return MakeDeadline({section.deadline_k, *least, workers, section.deadline_window});
}

Result<std::unique_ptr<ClosingRule>> MakePartialRule(const PolicySection& section,
                                                     std::uint32_t workers) {
  auto least =
      LeastContributors("partial.min_contributors", section.partial_min_contributors, workers);
  if (!least) return least.error();
  return MakePartial({section.partial_k, *least, workers, section.partial_window});
}

std::unique_ptr<WorkRule> MakeNoneRule(const PolicySection&) { return MakeWorkNone(); }

FlexrrOptions FlexrrOf(const PolicySection& section) {
  return {section.flexrr_trigger, section.flexrr_first, section.flexrr_group_size};
}

std::unique_ptr<WorkRule> MakeFlexrrRule(const PolicySection& section) {
  return MakeFlexrr(FlexrrOf(section), MakeLastingShares({section.balance_hysteresis}));
}

std::unique_ptr<WorkRule> MakeBalanceRule(const PolicySection& section) {
  return MakeBalance({section.balance_hysteresis});
}

Result<Policy> MakeAutoPolicy(const PolicySection& section, std::uint32_t, PluginMaker) {
  return MakeAuto(FlexrrOf(section), {section.balance_hysteresis});
}

Result<Policy> MakeAsyncPolicy(const PolicySection& section, std::uint32_t workers, PluginMaker) {
  const std::uint32_t bound =
      section.async_staleness == PolicySection::kAuto ? 4 * workers : section.async_staleness;
  return MakeAsync({bound, section.async_damping});
}

Result<Policy> MakePluginPolicy(const PolicySection& section, std::uint32_t workers,
                                PluginMaker plugin) {
  if (plugin == nullptr) {
    return Error{ErrorCode::kInvalid, "policy.name = plugin: this program loads none"};
  }
  return plugin(section, workers);
}

constexpr std::array kClosing = {ClosingEntry{"full", false, MakeFullRule},
                                 ClosingEntry{"backup", true, MakeBackupRule},
                                 ClosingEntry{"deadline", true, MakeDeadlineRule},
                                 ClosingEntry{"partial", true, MakePartialRule}};
constexpr std::array kWork = {WorkEntry{"none", false, MakeNoneRule},
                              WorkEntry{"flexrr", true, MakeFlexrrRule},
                              WorkEntry{"balance", false, MakeBalanceRule}};
constexpr std::array kWhole = {PolicyEntry{"auto", MakeAutoPolicy},
                               PolicyEntry{"async", MakeAsyncPolicy},
                               PolicyEntry{"plugin", MakePluginPolicy}};
// Before a closing rule, or alone: what a round is, not when it closes.
constexpr std::string_view kLocal = "local";

template <class Entries>
auto Find(const Entries& entries, std::string_view name) {
  return std::find_if(entries.begin(), entries.end(),
                      [name](const auto& entry) { return entry.name == name; });
}

template <class Entries>
std::vector<std::string> Names(const Entries& entries) {
  std::vector<std::string> names;
  for (const auto& entry : entries) names.emplace_back(entry.name);
  return names;
}

Error UnknownName(std::string_view configured, std::string_view name) {
  std::vector<std::string> known = ClosingRuleNames();
  for (std::string& work : WorkRuleNames()) known.push_back(std::move(work));
  for (std::string& whole : WholePolicyNames()) known.push_back(std::move(whole));
  known.emplace_back(kLocal);
  return {ErrorCode::kInvalid, NotOneOf(fmt::format("policy.name = {}", configured), name, known)};
}

}  // namespace

std::uint32_t DefaultMinWorkers(const Policy& policy, std::uint32_t workers) {
  const std::uint32_t kept = workers - std::min(policy.closing->Spare(), workers - 1);
  return policy.work->PlacesUnits() ? std::min(kept, workers / 2 + 1) : kept;
}

PolicyTraits TraitsOf(const Policy& policy, std::string name) {
  return {.name = std::move(name), .relaxed = policy.relaxed, .local = policy.local};
}

std::vector<std::string> ClosingRuleNames() { return Names(kClosing); }
std::vector<std::string> WorkRuleNames() { return Names(kWork); }
std::vector<std::string> WholePolicyNames() { return Names(kWhole); }

Result<Policy> MakePolicy(const PolicySection& section, std::uint32_t workers, PluginMaker plugin) {
  if (const auto whole = Find(kWhole, section.name); whole != kWhole.end()) {
    return whole->make(section, workers, plugin);
  }
  const ClosingEntry* closing = nullptr;
  const WorkEntry* work = nullptr;
  std::string_view rest = section.name;
  bool local = false;
  if (rest == kLocal) {
    rest = "full";
    local = true;
  } else if (rest.starts_with("local+")) {
    rest.remove_prefix(kLocal.size() + 1);
    local = true;
  }
  for (bool more = true; more;) {
    const std::size_t plus = rest.find('+');
    const std::string_view name = rest.substr(0, plus);
    more = plus != std::string_view::npos;
    rest = more ? rest.substr(plus + 1) : std::string_view();
    const auto closing_found = Find(kClosing, name);
    const auto work_found = Find(kWork, name);
    if (closing_found == kClosing.end() && work_found == kWork.end()) {
      if (Find(kWhole, name) != kWhole.end()) {
        return Error{ErrorCode::kInvalid,
                     fmt::format("policy.name = {}: '{}' is a whole policy and stands alone",
                                 section.name, name)};
      }
      return UnknownName(section.name, name);
    }
    const bool twice = closing_found != kClosing.end() ? closing != nullptr : work != nullptr;
    if (twice) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("policy.name = {}: it takes one closing rule and one work rule, and "
                               "'{}' is the second of its kind",
                               section.name, name)};
    }
    if (closing_found != kClosing.end()) closing = &*closing_found;
    if (work_found != kWork.end()) work = &*work_found;
  }
  if (local && work != nullptr && work->name != "none") {
    return Error{ErrorCode::kInvalid,
                 fmt::format("policy.name = {}: local steps do not move between workers, so local "
                             "takes a closing rule and no work rule",
                             section.name)};
  }
  if (closing == nullptr) closing = &kClosing.front();
  if (work == nullptr) work = &kWork.front();

  auto rule = closing->make(section, workers);
  if (!rule) return rule.error();
  Policy policy;
  policy.name = local ? fmt::format("{}+{}", kLocal, closing->name)
                      : fmt::format("{}+{}", closing->name, work->name);
  policy.local = local;
  policy.closing = std::move(*rule);
  policy.work = work->make(section);
  if (closing->leaves_out && !work->moves && !local) {
    policy.work = MakeEpochEnd(FlexrrOf(section), std::move(policy.work));
  }
  if (closing->leaves_out || work->moves) policy.runs = MakeGuidedRuns();
  return policy;
}

}  // namespace lockstep::policies
