#include "policies/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/suggest.h"
#include "policies/backup.h"
#include "policies/full.h"
#include "policies/work_none.h"

namespace lockstep::policies {
namespace {

struct ClosingEntry {
  std::string_view name;
  Result<std::unique_ptr<ClosingRule>> (*make)(const PolicySection&, std::uint32_t workers);
};

struct WorkEntry {
  std::string_view name;
  std::unique_ptr<WorkRule> (*make)();
};

Result<std::unique_ptr<ClosingRule>> MakeFullRule(const PolicySection&, std::uint32_t) {
  return MakeFull();
}

Result<std::unique_ptr<ClosingRule>> MakeBackupRule(const PolicySection& section,
                                                    std::uint32_t workers) {
  if (section.backup_workers >= workers) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("backup.workers = {} must be less than the {} workers of the job",
                             section.backup_workers, workers)};
  }
  return MakeBackup(section.backup_workers);
}

constexpr std::array kClosing = {ClosingEntry{"full", MakeFullRule},
                                 ClosingEntry{"backup", MakeBackupRule}};
constexpr std::array kWork = {WorkEntry{"none", MakeWorkNone}};

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
  return {ErrorCode::kInvalid,
          fmt::format("policy.name = {}: there is no rule '{}', did you mean '{}'?", configured,
                      name, Nearest(name, known))};
}

}  // namespace

std::vector<std::string> ClosingRuleNames() { return Names(kClosing); }
std::vector<std::string> WorkRuleNames() { return Names(kWork); }

Result<Policy> MakePolicy(const PolicySection& section, std::uint32_t workers) {
  const ClosingEntry* closing = nullptr;
  const WorkEntry* work = nullptr;
  std::string_view rest = section.name;
  for (bool more = true; more;) {
    const std::size_t plus = rest.find('+');
    const std::string_view name = rest.substr(0, plus);
    more = plus != std::string_view::npos;
    rest = more ? rest.substr(plus + 1) : std::string_view();
    const auto closing_found = Find(kClosing, name);
    const auto work_found = Find(kWork, name);
    if (closing_found == kClosing.end() && work_found == kWork.end()) {
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
  if (closing == nullptr) closing = &kClosing.front();
  if (work == nullptr) work = &kWork.front();

  auto rule = closing->make(section, workers);
  if (!rule) return rule.error();
  Policy policy;
  policy.name = fmt::format("{}+{}", closing->name, work->name);
  policy.closing = std::move(*rule);
  policy.work = work->make();
  return policy;
}

}  // namespace lockstep::policies
