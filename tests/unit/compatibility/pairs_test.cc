// All pairs of choices under every policy, at each place where a job may be refused: reading a
// config, starting, exchanging the policy at run time, resuming. The records have status and line.
//
// A pair has the line of its first choice alone, or else that of its second one alone. A record
// lists single choices that are refused, and the pairs that have another outcome than that. What is
// refused at an earlier place is not listed again at a later one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/job_options.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/resume_rules.h"
#include "policies/registry.h"
#include "tests/unit/compatibility/record.h"

namespace lockstep {
namespace {

constexpr std::uint32_t kWorkers = 4;

struct Choice {
  const char* key;
  const char* value;
};

constexpr std::array kChoices = {
    Choice{"exchange.encryption", "on"},
    Choice{"exchange.transport", "ucx"},
    Choice{"exchange.transport", "tcp"},
    Choice{"exchange.connections", "2"},
    Choice{"exchange.compression", "topk"},
    Choice{"exchange.compression", "powersgd"},
    Choice{"exchange.rounding", "stochastic"},
    Choice{"exchange.algorithm", "ring"},
    Choice{"exchange.algorithm", "tree"},
    Choice{"exchange.algorithm", "auto"},
    Choice{"exchange.dtype", "bf16"},
    Choice{"exchange.dtype", "fp16"},
    Choice{"exchange.mapping", "off"},
    Choice{"exchange.memory", "host"},
    Choice{"optimizer.name", "custom"},
    Choice{"optimizer.name", "adamw"},
    Choice{"optimizer.replicas", "2"},
    Choice{"optimizer.replicas", "4"},
    Choice{"optimizer.momentum", "0"},
    Choice{"optimizer.nesterov", "true"},
    Choice{"optimizer.clip", "1"},
    Choice{"schedule.name", "step"},
    Choice{"local.momentum", "0.5"},
    Choice{"job.on_nan", "skip"},
    Choice{"data.format", "synthetic"},
};
// `plugin` is one whose rounds are relaxed.
constexpr std::array kPolicies = {"full",        "backup",       "deadline",    "partial",
                                  "full+flexrr", "full+balance", "auto",        "plugin",
                                  "async",       "local",        "local+backup"};
constexpr std::array kKinds = {"full", "async", "local"};
constexpr const char* kEarlier = "refused at an earlier place";

Result<policies::Policy> Relaxed(const PolicySection& section, std::uint32_t workers) {
  PolicySection async = section;
  async.name = "async";
  return policies::MakePolicy(async, workers);
}

std::string LineOf(const Status& status) { return status.ok() ? "" : status.error().message; }

// As it is read, before it is checked.
JobConfig With(const Choice* a, const Choice* b, const std::string& policy) {
  static std::map<std::pair<const Choice*, const Choice*>, JobConfig> read;
  const auto [at, is_new] = read.try_emplace({a, b});
  if (is_new) {
    OptionTable table;
    DeclareJobOptions(table, &at->second);
    for (const Choice* choice : {a, b}) {
      if (choice == nullptr) continue;
      const Status set = table.Set(choice->key, choice->value);
      EXPECT_TRUE(set.ok()) << LineOf(set);
    }
  }
  JobConfig config = at->second;
  config.policy.name = policy;
  return config;
}

std::string ReadLine(const JobConfig& config) { return LineOf(CheckJobConfig(config)); }

coordinator::StartParameters StartOf(const JobConfig& config) {
  coordinator::StartParameters start;
  start.config = config;
  start.workers = kWorkers;
  start.plugin = Relaxed;
  return start;
}

// As the programs do, the config is checked before anything starts.
std::string StartLine(const JobConfig& config) {
  if (!CheckJobConfig(config)) return kEarlier;
  const auto made = coordinator::Coordinator::Make(StartOf(config));
  return made.ok() ? "" : made.error().message;
}

std::string ChangeLine(const JobConfig& config, const std::string& to) {
  if (!CheckJobConfig(config)) return kEarlier;
  auto made = coordinator::Coordinator::Make(StartOf(config));
  if (!made) return kEarlier;
  coordinator::Actions actions;
  (*made)->Step(Time{}, coordinator::PolicyRequested{to}, &actions);
  for (const coordinator::Action& action : actions) {
    const auto* answer = std::get_if<coordinator::Answer>(&action);
    if (answer != nullptr) return answer->accepted ? "" : answer->text;
  }
  return "no answer";
}

std::string ResumeLine(const JobConfig& before, const JobConfig& now) {
  if (!CheckJobConfig(before) || !CheckJobConfig(now)) return kEarlier;
  coordinator::JobState state;
  state.sampler = {120, Epoch(0), {{4, 8}, {96, 120}}};
  state.settings = coordinator::SettingsToRemember(before);
  return LineOf(coordinator::CheckResume(state, now));
}

std::string Name(const Choice& choice) { return fmt::format("{} = {}", choice.key, choice.value); }

using LineOfPair = std::function<std::string(const Choice*, const Choice*)>;

std::string Listed(const std::vector<const Choice*>& choices, bool ordered,
                   const LineOfPair& line_of) {
  std::string text;
  std::size_t refused = 0;
  const auto list = [&](const std::string& what, const std::string& line) {
    if (line != kEarlier) text += fmt::format("  {}: {}\n", what, line.empty() ? "taken" : line);
  };
  const std::string none = line_of(nullptr, nullptr);
  if (!none.empty()) list("nothing else", none);
  std::map<const Choice*, std::string> first;
  std::map<const Choice*, std::string> second;
  for (const Choice* choice : choices) {
    first[choice] = line_of(choice, nullptr);
    second[choice] = ordered ? line_of(nullptr, choice) : first[choice];
    if (first[choice] != none) list(Name(*choice), first[choice]);
    if (ordered && second[choice] != none) list("then " + Name(*choice), second[choice]);
  }
  for (const Choice* a : choices) {
    for (const Choice* b : choices) {
      if (!ordered && (b <= a || std::string_view(a->key) == b->key)) continue;
      const std::string line = line_of(a, b);
      refused += line.empty() || line == kEarlier ? 0 : 1;
      const bool by_second = first[a].empty() || first[a] == kEarlier;
      if (line == (by_second ? second[b] : first[a])) continue;
      list(fmt::format("{}{} {}", Name(*a), ordered ? ", then" : " and", Name(*b)), line);
    }
  }
  return fmt::format("{} pairs refused\n{}", refused, text);
}

// Policies of which all lines are the same stand together.
void ExpectListed(const std::vector<std::pair<std::string, std::string>>& listed,
                  const std::string& record) {
  std::vector<std::pair<std::string, std::string>> together;  // texts, and of what
  for (const auto& [what, text] : listed) {
    const auto same =
        std::ranges::find(together, text, &std::pair<std::string, std::string>::first);
    if (same == together.end()) {
      together.emplace_back(text, what);
    } else {
      same->second += "; " + what;
    }
  }
  std::string all;
  for (const auto& [text, what] : together) all += what + ": " + text;
  ExpectAsRecorded(all, record);
}

std::vector<const Choice*> All() {
  std::vector<const Choice*> choices;
  for (const Choice& choice : kChoices) choices.push_back(&choice);
  return choices;
}

// Of what tensors, samples or rounds there are.
std::vector<const Choice*> OfState() {
  std::vector<const Choice*> choices = All();
  std::erase_if(choices, [](const Choice* choice) {
    const std::string_view key = choice->key;
    return key.starts_with("exchange.")
               ? key != "exchange.compression"
               : key.starts_with("schedule.") || key.starts_with("job.") ||
                     key == "optimizer.nesterov" || key == "optimizer.clip";
  });
  return choices;
}

TEST(AllPairs, AreReadAsRecorded) {
  std::vector<std::pair<std::string, std::string>> listed;
  for (const std::string policy : kPolicies) {
    listed.emplace_back(policy, Listed(All(), false, [&](const Choice* a, const Choice* b) {
                          return ReadLine(With(a, b, policy));
                        }));
  }
  ExpectListed(listed, "read.txt");
}

TEST(AllPairs, StartAsRecorded) {
  std::vector<std::pair<std::string, std::string>> listed;
  for (const std::string policy : kPolicies) {
    listed.emplace_back(policy, Listed(All(), false, [&](const Choice* a, const Choice* b) {
                          return StartLine(With(a, b, policy));
                        }));
  }
  ExpectListed(listed, "start.txt");
}

TEST(AllPairs, TakeAnotherPolicyAsRecorded) {
  std::vector<std::pair<std::string, std::string>> listed;
  for (const std::string from : kKinds) {
    for (const std::string to : kPolicies) {
      listed.emplace_back(fmt::format("{} to {}", from, to),
                          Listed(All(), false, [&](const Choice* a, const Choice* b) {
                            return ChangeLine(With(a, b, from), to);
                          }));
    }
  }
  ExpectListed(listed, "change.txt");
}

TEST(AllPairs, AreResumedAsRecorded) {
  const auto choices = OfState();
  std::vector<std::pair<std::string, std::string>> listed;
  for (const std::string before : kKinds) {
    for (const std::string now : kKinds) {
      listed.emplace_back(fmt::format("{} resumed as {}", before, now),
                          Listed(choices, true, [&](const Choice* a, const Choice* b) {
                            return ResumeLine(With(a, nullptr, before), With(b, nullptr, now));
                          }));
    }
  }
  ExpectListed(listed, "resume.txt");
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) { return lockstep::RunRecords(argc, argv); }
