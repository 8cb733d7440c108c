#include "coordinator/core/reattachment.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/sometimes.h"

namespace lockstep::coordinator {

const JournalEntry* Reattachment::Choose() {
  LOCKSTEP_CHECK(chosen_ == nullptr, "the entry from which the job continues is chosen twice");
  const auto& journal = job_->start.journal;
  for (auto entry = journal.rbegin(); entry != journal.rend() && chosen_ == nullptr; ++entry) {
    bool held = std::ranges::any_of(job_->members.all(), [&](const Member& member) {
      return member.connected() && member.state == MemberState::kForming && Holds(member, *entry);
    });
    if (held && job_->sharded()) {
      const auto holders = HoldersOf(*entry);
      held = std::ranges::none_of(holders, [](const auto& of) { return of.empty(); });
      if (!held) Sometimes<"reattachment: not all shards of an entry are there">();
    }
    if (held) chosen_ = &*entry;
    if (held && entry != journal.rbegin())
      Sometimes<"reattachment: an entry before the last one">();
  }
  return chosen_;
}

const Member* Reattachment::Beyond() const {
  const HeldParameters newest = job_->start.journal.back().held();
  const auto newer = [&](const Member& member) {
    const auto& held = member.ready.held;
    if (!member.connected() || member.state != MemberState::kForming || !held) return false;
    if (held->term != newest.term) return held->term > newest.term;
    if (held->next != newest.next) return held->next > newest.next;
    return held->attempt > newest.attempt;
  };
  const auto found = std::ranges::find_if(job_->members.all(), newer);
  if (found == job_->members.all().end()) return nullptr;
  Sometimes<"reattachment: a worker is beyond the journal">();
  return &*found;
}

bool Reattachment::Holds(const Member& member) const {
  return chosen_ != nullptr && Holds(member, *chosen_);
}

bool Reattachment::Holds(const Member& member, const JournalEntry& entry) const {
  return member.ready.held == entry.held() &&
         (!job_->sharded() || !member.ready.held_shards.empty());
}

std::vector<std::vector<MemberId>> Reattachment::Holders() const {
  LOCKSTEP_CHECK(chosen_ != nullptr && job_->sharded(), "nobody was asked for shards");
  return HoldersOf(*chosen_);
}

std::vector<std::vector<MemberId>> Reattachment::HoldersOf(const JournalEntry& entry) const {
  std::vector<std::vector<MemberId>> holders(
      job_->start.config.optimizer.Shards(job_->start.workers));
  for (const Member& member : job_->members.all()) {
    if (!member.connected() || !Holds(member, entry)) continue;
    if (member.state != MemberState::kForming && !member.live()) continue;
    for (const std::uint64_t shard : member.ready.held_shards) {
      holders[shard].push_back(member.id);
    }
  }
  return holders;
}

std::string Reattachment::Words(std::uint32_t holders, std::uint32_t others) const {
  std::string text = fmt::format("the job goes on from round {}, whose parameters {} worker{} held",
                                 chosen_->state.next_round, holders, holders == 1 ? "" : "s");
  if (others > 0) Sometimes<"reattachment: some copy the parameters">();
  if (others > 0 && chosen_->state.next_round == RoundId(0)) {
    text += fmt::format("; {} begin{} as in a new job", others, others == 1 ? "s" : "");
  } else if (others > 0) {
    text += fmt::format("; {} cop{} them", others, others == 1 ? "ies" : "y");
  }
  return text;
}

}  // namespace lockstep::coordinator
