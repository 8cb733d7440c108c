#include "coordinator/round/audits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/random.h"

namespace lockstep::coordinator {
namespace {

using Finding = Audits::Finding;

// Rounds whose audits may still be answered: the open one, the committed one, and one more.
constexpr std::uint64_t kRoundsOpen = 3;

double Norm(const msg::Audited& audited) { return std::sqrt(audited.squares); }

// The estimated norm of the difference.
double Distance(const msg::Audited& one, const msg::Audited& other) {
  double squares = 0;
  for (std::size_t i = 0; i < msg::kAuditCounters; ++i) {
    const double by = one.sketch[i] - other.sketch[i];
    squares += by * by;
  }
  return std::sqrt(squares);
}

std::string UnitText(const msg::Audited& audited) {
  return fmt::format("the samples [{}, {}) in round {}", audited.unit.range.from,
                     audited.unit.range.to, audited.round);
}

std::string DifferenceText(const msg::Audited& one, const msg::Audited& other) {
  return fmt::format("the difference has the norm {:.3g}, the gradient {:.3g}",
                     Distance(one, other), Norm(other));
}

}  // namespace

bool Audits::Open::Asks(const MemberId& member) const {
  return audit.subject == member || std::ranges::find(audit.by, member) != audit.by.end();
}

// Each member's first unit is drawn so often that of all its units audit.share are; who computes it
// too is drawn among all others. Each member computes for one audit at most.
std::vector<Audit> Audits::Choose(const Plan& plan, const std::vector<MemberId>& able) {
  std::vector<Audit> audits;
  able_ = able.size();
  if (off_ || options_.share <= 0 || plan.relaxed || plan.local_rate != 0 || able.size() < 2) {
    return audits;
  }
  RandomStream random(options_.seed, 0x6175646974, plan.round.value);
  std::vector<MemberId> taken;
  const auto free = [&](const MemberId& member) {
    return std::ranges::find(taken, member) == taken.end();
  };
  const auto suspects = AuditSuspects(plan, able);
  if (suspects) {
    audits.push_back(*suspects);
    taken = suspects->by;
  }
  for (const Assignment& assignment : plan.assignments) {
    const double wanted = options_.share * static_cast<double>(assignment.units.size());
    if (random.NextUniform() >= wanted || assignment.units.empty()) continue;
    if (suspects && suspects->subject == assignment.member) continue;
    std::vector<MemberId> others;
    for (const MemberId& member : able) {
      if (member != assignment.member && free(member)) others.push_back(member);
    }
    if (others.empty()) break;
    const MemberId by = others[random.NextBelow(others.size())];
    taken.push_back(by);
    audits.push_back({assignment.member, assignment.units.front(), {by}});
  }
  std::ranges::sort(audits, {}, &Audit::subject);
  for (const Audit& audit : audits) open_.push_back({plan.round, plan.attempt, audit, {}});
  return audits;
}

std::optional<Audit> Audits::AuditSuspects(const Plan& plan,
                                           const std::vector<MemberId>& able) const {
  if (!suspicion_) return std::nullopt;
  MemberId subject = suspicion_->one;
  MemberId other = suspicion_->other;
  auto assignment = std::ranges::find(plan.assignments, subject, &Assignment::member);
  if (assignment == plan.assignments.end()) {
    std::swap(subject, other);
    assignment = std::ranges::find(plan.assignments, subject, &Assignment::member);
  }
  if (assignment == plan.assignments.end() || assignment->units.empty() ||
      !std::ranges::binary_search(able, other)) {
    return std::nullopt;
  }
  std::vector<MemberId> thirds;
  for (const MemberId& member : able) {
    if (member != subject && member != other) thirds.push_back(member);
  }
  if (thirds.empty()) return std::nullopt;
  // Another one each round: a third worker may be late.
  return Audit{
      subject, assignment->units.front(), {other, thirds[plan.round.value % thirds.size()]}};
}

std::vector<Finding> Audits::OnAudited(const MemberId& from, const msg::Audited& audited) {
  std::vector<Finding> findings;
  for (auto open = open_.begin(); open != open_.end(); ++open) {
    if (open->round != audited.round || open->plan != audited.plan ||
        open->audit.unit != audited.unit || !open->Asks(from) ||
        std::ranges::find(open->answers, from, &Answer::from) != open->answers.end()) {
      continue;
    }
    open->answers.push_back({from, audited});
    if (open->answers.size() < open->Asked()) return findings;
    const Open whole = std::move(*open);
    open_.erase(open);
    Judge(whole, &findings);
    return findings;
  }
  return findings;
}

std::vector<Finding> Audits::OnOver(RoundId round) {
  std::vector<Finding> findings;
  std::vector<Open> over;
  std::erase_if(open_, [&](const Open& open) {
    if (open.round.value + kRoundsOpen > round.value) return false;
    over.push_back(open);
    return true;
  });
  for (const Open& open : over) Judge(open, &findings);
  return findings;
}

void Audits::OnOut(WorkerId worker) {
  if (suspicion_ && (suspicion_->one.worker == worker || suspicion_->other.worker == worker)) {
    suspicion_.reset();
  }
  std::erase_if(open_, [&](const Open& open) {
    return open.audit.subject.worker == worker ||
           std::ranges::any_of(open.audit.by,
                               [&](const MemberId& member) { return member.worker == worker; });
  });
}

// Bits of values that are no numbers may differ, and such a gradient is left out by itself.
bool Audits::Agree(const msg::Audited& one, const msg::Audited& other) const {
  if (one.bits == other.bits) return true;
  if (!std::isfinite(one.squares) || !std::isfinite(other.squares)) {
    return std::isfinite(one.squares) == std::isfinite(other.squares);
  }
  if (one.arithmetic == other.arithmetic) return false;
  return Distance(one, other) <= options_.tolerance * std::max(Norm(one), Norm(other));
}

void Audits::Judge(const Open& open, std::vector<Finding>* findings) {
  if (open.answers.size() < 2) return;
  ++record_.units;
  if (open.answers.size() == 2) return JudgeTwo(open, findings);
  JudgeThree(open, findings);
}

void Audits::JudgeTwo(const Open& open, std::vector<Finding>* findings) {
  const Answer& one = open.answers[0];
  const Answer& other = open.answers[1];
  if (Agree(one.audited, other.audited)) return;
  ++record_.differed;
  if (suspicion_) return;  // these or others are looked at already
  suspicion_ = {one.from, other.from, 0};
  findings->push_back(
      {Finding::Kind::kDiffer,
       fmt::format("audit: workers {} and {} computed two different gradients of {} ({}); {}",
                   one.from.worker, other.from.worker, UnitText(one.audited),
                   DifferenceText(one.audited, other.audited),
                   able_ > 2 ? "a third worker decides which of them is wrong"
                             : "it takes a third worker to tell which of them is wrong")});
}

void Audits::JudgeThree(const Open& open, std::vector<Finding>* findings) {
  const std::vector<Answer>& answers = open.answers;
  std::optional<std::size_t> wrong;
  std::size_t pairs = 0;  // that agree
  for (std::size_t i = 0; i < 3; ++i) {
    const msg::Audited& one = answers[(i + 1) % 3].audited;
    const msg::Audited& other = answers[(i + 2) % 3].audited;
    if (!Agree(one, other)) continue;
    ++pairs;
    if (!Agree(answers[i].audited, one) && !Agree(answers[i].audited, other)) wrong = i;
  }
  if (wrong) {
    ++record_.differed;
    const Answer& outvoted = answers[*wrong];
    const Answer& one = answers[(*wrong + 1) % 3];
    const Answer& other = answers[(*wrong + 2) % 3];
    record_.wrong.push_back(outvoted.from.worker);
    suspicion_.reset();
    findings->push_back(
        {Finding::Kind::kWrong,
         fmt::format("audit: worker {} computes wrong gradients: its one of {} differs from those "
                     "of workers {} and {}, which agree ({})",
                     outvoted.from.worker, UnitText(outvoted.audited), one.from.worker,
                     other.from.worker, DifferenceText(outvoted.audited, one.audited)),
         outvoted.from});
    return;
  }
  if (pairs == 0) {
    ++record_.differed;
    off_ = true;
    suspicion_.reset();
    findings->push_back(
        {Finding::Kind::kUnlike,
         fmt::format("audit: workers {}, {} and {} computed three different gradients of {}: they "
                     "are not the same each time, so audits of this job end",
                     answers[0].from.worker, answers[1].from.worker, answers[2].from.worker,
                     UnitText(answers[0].audited))});
    return;
  }
  if (!suspicion_ || ++suspicion_->agreements < kAgreements) return;
  findings->push_back({Finding::Kind::kOver,
                       fmt::format("audit: workers {} and {} have agreed with a third one {} times "
                                   "since they differed: which of them was wrong is not known",
                                   suspicion_->one.worker, suspicion_->other.worker, kAgreements)});
  suspicion_.reset();
}

}  // namespace lockstep::coordinator
