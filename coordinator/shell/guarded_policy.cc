#include "coordinator/shell/guarded_policy.h"

#include <cstdint>
#include <exception>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ini.h"
#include "policies/work_none.h"

namespace lockstep::coordinator {
namespace {

using policies::ClosingRule;
using policies::ClosingVerdict;
using policies::RoundView;
using policies::RunRule;
using policies::WorkerView;
using policies::WorkRule;
using policies::WorkVerdict;

// One for all rules of a policy.
class Guard {
 public:
  explicit Guard(std::shared_ptr<std::string> threw) : threw_(std::move(threw)) {}

  template <class Answer, class Ask>
  Answer Try(Answer otherwise, const Ask& ask) const {
    if (!threw_->empty()) return otherwise;
    try {
      return ask();
    } catch (...) {
      *threw_ = WhatIsThrown();
    }
    return otherwise;
  }
  template <class Rule>
  void OnCommitted(Rule& rule, const RoundView& view) const {
    Try(true, [&] {
      rule.OnCommitted(view);
      return true;
    });
  }
  template <class Verdict, class Rule>
  Verdict Judge(Rule& rule, const RoundView& view) const {
    return Try(Verdict(), [&] {
      Verdict verdict = rule.Judge(view);
      verdict.reason = Printable(verdict.reason);
      return verdict;
    });
  }

 private:
  std::shared_ptr<std::string> threw_;
};

class GuardedClosing final : public ClosingRule {
 public:
  GuardedClosing(std::unique_ptr<ClosingRule> rule, Guard guard)
      : rule_(std::move(rule)), guard_(std::move(guard)) {}

  std::string_view name() const override { return "plugin"; }
  ClosingVerdict Judge(const RoundView& view) override {
    return guard_.Judge<ClosingVerdict>(*rule_, view);
  }
  bool CanDoWithout(const RoundView& view) override {
    return guard_.Try(false, [&] { return rule_->CanDoWithout(view); });
  }
  std::uint32_t Spare() const override {
    return guard_.Try(0u, [&] { return rule_->Spare(); });
  }
  bool CutsUnits() const override {
    return guard_.Try(false, [&] { return rule_->CutsUnits(); });
  }
  void OnCommitted(const RoundView& view) override { guard_.OnCommitted(*rule_, view); }

 private:
  const std::unique_ptr<ClosingRule> rule_;
  const Guard guard_;
};

class GuardedWork final : public WorkRule {
 public:
  GuardedWork(std::unique_ptr<WorkRule> rule, Guard guard)
      : rule_(std::move(rule)), equal_(policies::MakeWorkNone()), guard_(std::move(guard)) {}

  std::string_view name() const override { return "plugin"; }
  std::vector<std::uint32_t> Share(std::span<const WorkerView> members,
                                   std::uint32_t units) override {
    return guard_.Try(equal_->Share(members, units), [&] { return rule_->Share(members, units); });
  }
  WorkVerdict Judge(const RoundView& view) override {
    return guard_.Judge<WorkVerdict>(*rule_, view);
  }
  bool PlacesUnits() const override {
    return guard_.Try(false, [&] { return rule_->PlacesUnits(); });
  }
  void OnCommitted(const RoundView& view) override { guard_.OnCommitted(*rule_, view); }

 private:
  const std::unique_ptr<WorkRule> rule_;
  const std::unique_ptr<WorkRule> equal_;
  const Guard guard_;
};

class GuardedRuns final : public RunRule {
 public:
  GuardedRuns(std::unique_ptr<RunRule> rule, Guard guard)
      : rule_(std::move(rule)), guard_(std::move(guard)) {}

  std::vector<RunLimit> Runs(std::span<const WorkerView> members,
                             std::span<const std::uint32_t> shares) override {
    return guard_.Try(std::vector<RunLimit>(members.size()),
                      [&] { return rule_->Runs(members, shares); });
  }
  void OnCommitted(const RoundView& view) override { guard_.OnCommitted(*rule_, view); }

 private:
  const std::unique_ptr<RunRule> rule_;
  const Guard guard_;
};

}  // namespace

policies::Policy Guarded(policies::Policy policy) {
  const auto threw = std::make_shared<std::string>();
  const Guard guard(threw);
  policy.name = Printable(policy.name);
  policy.closing = std::make_unique<GuardedClosing>(std::move(policy.closing), guard);
  policy.work = std::make_unique<GuardedWork>(std::move(policy.work), guard);
  if (policy.runs) policy.runs = std::make_unique<GuardedRuns>(std::move(policy.runs), guard);
  policy.threw = threw;
  return policy;
}

std::string WhatIsThrown() {
  try {
    throw;
  } catch (const std::exception& error) {
    const std::string what = Printable(error.what());
    return what.empty() ? "an exception without a word" : what;
  } catch (...) {
    return "something that is no std::exception";
  }
}

}  // namespace lockstep::coordinator
