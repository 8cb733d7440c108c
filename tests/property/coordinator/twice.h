// Each policy twice: one is shown the views with their lists of changes, and keeps what it made of
// them; the other one is shown views without, and makes all anew. They have to say the same.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/job_config.h"
#include "base/result.h"
#include "policies/policy.h"
#include "policies/registry.h"

namespace lockstep::coordinator {

struct Twice {
  policies::Policy kept;
  policies::Policy anew;
  static PolicySection& Next() {  // of what the next one is made
    static PolicySection next;
    return next;
  }
};

inline policies::RoundView WithoutChanges(policies::RoundView view) {
  view.changes = nullptr;
  return view;
}

class ClosingTwice final : public policies::ClosingRule {
 public:
  explicit ClosingTwice(std::shared_ptr<Twice> twice) : twice_(std::move(twice)) {}
  std::string_view name() const override { return twice_->kept.closing->name(); }
  policies::ClosingVerdict Judge(const policies::RoundView& view) override {
    policies::ClosingVerdict verdict = twice_->kept.closing->Judge(view);
    const policies::ClosingVerdict other = twice_->anew.closing->Judge(WithoutChanges(view));
    EXPECT_EQ(verdict.close, other.close);
    EXPECT_EQ(verdict.parts.size(), other.parts.size());
    EXPECT_EQ(verdict.reason, other.reason);
    EXPECT_EQ(verdict.look_again, other.look_again);
    return verdict;
  }
  bool CanDoWithout(const policies::RoundView& view) override {
    return twice_->kept.closing->CanDoWithout(view);
  }
  std::uint32_t Spare() const override { return twice_->kept.closing->Spare(); }
  bool CutsUnits() const override { return twice_->kept.closing->CutsUnits(); }
  void OnCommitted(const policies::RoundView& view) override {
    twice_->kept.closing->OnCommitted(view);
    twice_->anew.closing->OnCommitted(WithoutChanges(view));
  }

 private:
  std::shared_ptr<Twice> twice_;
};

class WorkTwice final : public policies::WorkRule {
 public:
  explicit WorkTwice(std::shared_ptr<Twice> twice) : twice_(std::move(twice)) {}
  std::string_view name() const override { return twice_->kept.work->name(); }
  std::vector<std::uint32_t> Share(std::span<const policies::WorkerView> members,
                                   std::uint32_t units) override {
    std::vector<std::uint32_t> shares = twice_->kept.work->Share(members, units);
    EXPECT_EQ(shares, twice_->anew.work->Share(members, units));
    return shares;
  }
  policies::WorkVerdict Judge(const policies::RoundView& view) override {
    policies::WorkVerdict verdict = twice_->kept.work->Judge(view);
    const policies::WorkVerdict other = twice_->anew.work->Judge(WithoutChanges(view));
    EXPECT_EQ(verdict.reason, other.reason);
    EXPECT_EQ(verdict.fence, other.fence);
    EXPECT_EQ(verdict.look_again, other.look_again);
    EXPECT_EQ(verdict.moves.size(), other.moves.size());
    for (std::size_t i = 0; i < std::min(verdict.moves.size(), other.moves.size()); ++i) {
      EXPECT_EQ(verdict.moves[i].from, other.moves[i].from);
      EXPECT_EQ(verdict.moves[i].to, other.moves[i].to);
      EXPECT_EQ(verdict.moves[i].units, other.moves[i].units);
    }
    return verdict;
  }
  bool PlacesUnits() const override { return twice_->kept.work->PlacesUnits(); }
  void OnCommitted(const policies::RoundView& view) override {
    twice_->kept.work->OnCommitted(view);
    twice_->anew.work->OnCommitted(WithoutChanges(view));
  }

 private:
  std::shared_ptr<Twice> twice_;
};

inline Result<policies::Policy> MakeTwice(const PolicySection&, std::uint32_t workers) {
  auto kept = policies::MakePolicy(Twice::Next(), workers);
  if (!kept) return kept.error();
  auto anew = policies::MakePolicy(Twice::Next(), workers);
  if (!anew) return anew.error();
  auto twice = std::make_shared<Twice>(Twice{*std::move(kept), *std::move(anew)});
  policies::Policy policy;
  policy.name = twice->kept.name;
  policy.closing = std::make_unique<ClosingTwice>(twice);
  policy.work = std::make_unique<WorkTwice>(twice);
  policy.runs = std::move(twice->kept.runs);
  return policy;
}

}  // namespace lockstep::coordinator
