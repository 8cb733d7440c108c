#include "coordinator/membership/slowdowns.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace lockstep::coordinator {
namespace {

// The summary has at most so many: a schedule of many short ones is cut.
constexpr std::size_t kMostNoted = 256;

// A worker's own slow-down holds for it alone. The text names the worker, except where that would
// change the meaning: for a pause or a disruption, a named worker means another schedule.
std::string ForPeople(SlowdownSpec spec, WorkerId worker) {
  if (spec.pattern != SlowdownPattern::kPause && spec.pattern != SlowdownPattern::kDisrupted)
    spec.worker = worker;
  return ToString(spec);
}

bool AskedForStart(std::string_view line) {
  return line.starts_with("from=") || line.find(",from=") != std::string_view::npos;
}

}  // namespace

std::vector<SlowdownSpec> Slowdowns::Of(const Member& member) const {
  std::vector<SlowdownSpec> specs;
  for (const SlowdownSpec& spec : member.slowdowns) {
    if (!IsOver(spec, Age())) specs.push_back(spec);
  }
  for (const SlowdownSpec& spec : asked_) {
    if (AppliesTo(spec, member.id.worker) && !IsOver(spec, Age())) specs.push_back(spec);
  }
  return specs;
}

void Slowdowns::SendTo(const Member& member) const {
  std::string lines;
  for (const SlowdownSpec& spec : Of(member)) lines += ToString(spec) + "\n";
  job_->Send(member, msg::SetSlowdown{std::move(lines)});
}

void Slowdowns::Note(std::string text) {
  std::vector<std::string>& noted = job_->emulation.Write().slowdowns;
  if (noted.size() >= kMostNoted || std::ranges::find(noted, text) != noted.end()) return;
  noted.push_back(std::move(text));
}

Status Slowdowns::OnReady(Member& from, const std::string& lines) {
  Result<std::vector<SlowdownSpec>> specs = ParseSlowdownLines(lines);
  if (!specs) return Error{ErrorCode::kInvalid, "has " + specs.error().message};
  // Half of what it may be told: the other half is for what is asked for at run time.
  if (specs->size() > kMaxSlowdownSpecs / 2 || lines.size() > kMaxSlowdownBytes / 2)
    return Error{ErrorCode::kInvalid, "has too many slow-downs"};
  from.slowdowns = *std::move(specs);
  for (const SlowdownSpec& spec : from.slowdowns) Note(ForPeople(spec, from.id.worker));
  if (sent_) SendTo(from);
  return {};
}

Result<std::string> Slowdowns::Request(std::string_view lines) {
  std::vector<SlowdownSpec> asked;
  bool clear = false;
  const auto invalid = [](std::string text) { return Error{ErrorCode::kInvalid, std::move(text)}; };
  while (!lines.empty()) {
    const auto end = lines.find('\n');
    std::string_view line = lines.substr(0, end);
    lines.remove_prefix(end == std::string_view::npos ? lines.size() : end + 1);
    line = line.substr(0, line.find_last_not_of(" \t\r") + 1);
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    if (line.empty()) continue;
    if (line == "none") {
      asked.clear();
      clear = true;
      continue;
    }
    Result<std::vector<SlowdownSpec>> spec = ParseSlowdownLines(line);
    if (!spec) return spec.error();
    SlowdownSpec& one = spec->front();
    if (!IsWithin(one, job_->members.slots())) {
      const std::string named = one.worker ? fmt::format("worker = {}", *one.worker)
                                           : fmt::format("workers = {}", one.workers);
      return invalid(
          fmt::format("slowdown {}: the workers are 0 to {}", named, job_->members.slots() - 1));
    }
    // Whole milliseconds read better.
    if (!AskedForStart(line)) one.from = std::chrono::floor<std::chrono::milliseconds>(Age());
    asked.push_back(std::move(one));
  }
  if (asked.empty() && !clear) return invalid("no slow-down is named; one SPEC in a line, or none");

  std::vector<SlowdownSpec> all;
  if (!clear) {
    std::ranges::copy_if(asked_, std::back_inserter(all),
                         [&](const SlowdownSpec& spec) { return !IsOver(spec, Age()); });
  }
  all.insert(all.end(), asked.begin(), asked.end());
  std::size_t bytes = 0;
  for (const SlowdownSpec& spec : all) bytes += ToString(spec).size() + 1;
  if (all.size() > kMaxSlowdownSpecs / 2 || bytes > kMaxSlowdownBytes / 2) {
    return invalid(fmt::format("slowdown: more than {} in force at a time, or they are too long",
                               kMaxSlowdownSpecs / 2));
  }

  asked_ = std::move(all);
  sent_ = true;
  for (const SlowdownSpec& spec : asked) Note(ToString(spec));
  for (Member& member : job_->members.all()) {
    if (clear) member.slowdowns.clear();
    if (member.connected() && member.state != MemberState::kJoining) SendTo(member);
  }
  const std::vector<std::string> in_force = InForce();
  std::string text;
  for (const std::string& one : in_force) text += (text.empty() ? "" : "; ") + one;
  return in_force.empty() ? std::string("no slow-down is in force") : "in force: " + text;
}

void Slowdowns::GoOnFrom(std::string_view lines) {
  Result<std::vector<SlowdownSpec>> specs = ParseSlowdownLines(lines);
  if (!specs || specs->empty()) return;
  asked_ = *std::move(specs);
  sent_ = true;
  for (const SlowdownSpec& spec : asked_) Note(ToString(spec));
}

std::string Slowdowns::Asked() const {
  std::string lines;
  for (const SlowdownSpec& spec : asked_) {
    if (!IsOver(spec, Age())) lines += ToString(spec) + "\n";
  }
  return lines;
}

std::vector<std::string> Slowdowns::InForce() const {
  std::vector<std::string> texts;
  for (const Member& member : job_->members.all()) {
    if (!member.connected()) continue;
    for (const SlowdownSpec& spec : member.slowdowns) {
      if (!IsOver(spec, Age())) texts.push_back(ForPeople(spec, member.id.worker));
    }
  }
  for (const SlowdownSpec& spec : asked_) {
    if (!IsOver(spec, Age())) texts.push_back(ToString(spec));
  }
  return texts;
}

void Slowdowns::CheckInvariants() const {
  LOCKSTEP_CHECK(asked_.size() <= kMaxSlowdownSpecs / 2, "I7: {} slow-downs are asked for",
                 asked_.size());
  LOCKSTEP_CHECK(asked_.empty() || sent_, "slow-downs are asked for and nobody is told");
  LOCKSTEP_CHECK(job_->emulation().slowdowns.size() <= kMostNoted, "I7: {} slow-downs are noted",
                 job_->emulation().slowdowns.size());
  for (const Member& member : job_->members.all()) {
    LOCKSTEP_CHECK(member.slowdowns.size() <= kMaxSlowdownSpecs / 2,
                   "I7: worker {} has {} slow-downs", member.id.worker, member.slowdowns.size());
  }
}

}  // namespace lockstep::coordinator
