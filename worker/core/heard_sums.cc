#include "worker/core/heard_sums.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace lockstep::worker {

std::size_t HeardSums::KindOf(const SumReady& ready) {
  if (ready.passed) return kPassed + 2 * ready.passed->shard + (ready.passed->whole ? 1 : 0);
  return ready.stands_in_for ? kStandIn : kOwn;
}

// Connections that are made again may bring an older message behind a newer one.
void HeardSums::Store(const MemberId& from, const SumReady& ready,
                      std::span<const std::byte> floats) {
  auto& slot = heard_[from][KindOf(ready)][ready.round.value % kSumBuffers];
  const auto when = [](const SumReady& said) {
    return std::tuple(said.round, said.attempt, said.passed ? said.passed->pieces : 0);
  };
  if (slot && when(slot->ready) > when(ready)) return;
  slot = Heard{ready, {floats.begin(), floats.end()}};
}

const HeardSums::Heard* HeardSums::Find(const MemberId& owner, const msg::Commit& commit) const {
  return Find(owner, kOwn, commit);
}

// It stands in for one owner at a time, but it may have done so for another one in the attempt
// before.
const HeardSums::Heard* HeardSums::FindStandIn(const MemberId& by, WorkerId owner,
                                               const msg::Commit& commit) const {
  const Heard* heard = Find(by, kStandIn, commit);
  return heard != nullptr && heard->ready.stands_in_for == owner ? heard : nullptr;
}

const HeardSums::Heard* HeardSums::FindPassed(const MemberId& from, std::uint32_t shard, bool whole,
                                              const msg::Commit& commit) const {
  return Find(from, kPassed + 2 * shard + (whole ? 1 : 0), commit);
}

// The version of the map counts as well: under another one the same owner has other slices.
const HeardSums::Heard* HeardSums::Find(const MemberId& from, std::size_t kind,
                                        const msg::Commit& commit) const {
  const auto at = heard_.find(from);
  if (at == heard_.end()) return nullptr;
  const auto& heard = at->second[kind][commit.round.value % kSumBuffers];
  const bool of_it = heard && heard->ready.round == commit.round &&
                     heard->ready.attempt == commit.attempt &&
                     heard->ready.map_version == commit.owners.version;
  return of_it ? &*heard : nullptr;
}

void HeardSums::ForgetBefore(RoundId round, std::optional<RoundId> committed,
                             const std::function<bool(const MemberId&)>& known) {
  const std::uint64_t soon = (committed ? committed->value : 0) + kSumBuffers;
  const auto old = [&](const MemberId& from, RoundId said) {
    return said < round || (said.value > soon && !known(from));
  };
  for (auto& [from, kinds] : heard_) {
    for (auto& rounds : kinds) {
      for (auto& heard : rounds) {
        if (heard && old(from, heard->ready.round)) heard.reset();
      }
    }
  }
  std::erase_if(heard_, [](const auto& entry) {
    return std::ranges::none_of(entry.second, [](const auto& rounds) {
      return std::ranges::any_of(rounds, [](const auto& heard) { return heard.has_value(); });
    });
  });
}

std::size_t HeardSums::size() const {
  std::size_t count = 0;
  for (const auto& [from, kinds] : heard_) {
    for (const auto& rounds : kinds) {
      count += static_cast<std::size_t>(
          std::ranges::count_if(rounds, [](const auto& heard) { return heard.has_value(); }));
    }
  }
  return count;
}

void HeardSums::CheckInvariants() const {
  for (const auto& [from, kinds] : heard_) {
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      for (std::size_t slot = 0; slot < kSumBuffers; ++slot) {
        const auto& heard = kinds[kind][slot];
        if (!heard) continue;
        LOCKSTEP_CHECK(!heard->ready.gone, "sums of {} are remembered that are gone", from.worker);
        LOCKSTEP_CHECK(
            heard->ready.round.value % kSumBuffers == slot && KindOf(heard->ready) == kind,
            "I1: sums of round {} lie where another round's are looked for", heard->ready.round);
      }
    }
  }
}

}  // namespace lockstep::worker
