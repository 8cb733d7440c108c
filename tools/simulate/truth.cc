#include "tools/simulate/truth.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "base/random.h"
#include "base/routes.h"

namespace lockstep::simulate {
namespace {

constexpr std::uint64_t kRoundsKept = 64;

bool SameIn(const FloatRange& range, const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data() + range.first, b.data() + range.first, range.count * sizeof(float)) ==
         0;
}

// Compares all but the parameters.
bool SameState(const State& a, const State& b) {
  return SameBits(a.momentum, b.momentum) && SameBits(a.factors, b.factors);
}

}  // namespace

std::uint64_t Truth::DigestOf(const State& state) const {
  const std::uint64_t parameters = Digest(state.parameters.data(), state.parameters.size());
  if (sharded_) return parameters;
  std::uint64_t digest = parameters ^ Digest(state.momentum.data(), state.momentum.size());
  // The digest must not cancel that of the momentum where both are zero.
  if (layout_.rank() > 0) {
    digest ^= Mix64(Digest(state.factors.data(), state.factors.size()));
  }
  return digest;
}

void Truth::Complain(const MemberId& member, const std::string& what) {
  errors_.push_back(fmt::format("worker {}.{}: {}", member.worker, member.incarnation, what));
}

State Truth::Draw(const MemberId& member) {
  drawn_.push_back(InitialState(layout_, 1000 * member.worker.value + member.incarnation.value));
  return drawn_.back();
}

void Truth::OnBegun(const MemberId& member, const State& state) {
  // Of the optimizer's state a worker may keep only some shards.
  const auto same = [&](const State& other) {
    return other.parameters == state.parameters && (sharded_ || other.momentum == state.momentum);
  };
  if (!initial_) {
    const auto drawn = std::ranges::find_if(drawn_, same);
    if (drawn != drawn_.end()) initial_ = *drawn;
  }
  if (!initial_ || !same(*initial_)) Complain(member, "it begins with other parameters");
}

void Truth::OnCommit(const msg::Commit& commit) {
  if (!commits_.emplace(std::pair(commit.round, commit.attempt), commit).second) return;
  if (commit.next && commit.next->relaxed) relaxed_.insert(commit.next->round);
  if (relaxed_.contains(commit.round)) Choose(commit);
  CheckContributors(commit);
  const std::uint64_t round = commit.round.value;
  oldest_ = std::max(oldest_, RoundId(round < kRoundsKept ? 0 : round - kRoundsKept));
  std::erase_if(commits_, [&](const auto& c) { return c.first.first < oldest_; });
  std::erase_if(sealed_, [&](const auto& s) { return std::get<1>(s.first) < oldest_; });
  std::erase_if(chosen_, [&](const auto& c) { return std::get<1>(c.first) < oldest_; });
  std::erase_if(truth_, [&](const auto& t) { return t.first < oldest_; });
  std::erase_if(plans_, [&](const auto& p) { return p.first < oldest_; });
  if (commit.next) OnPlan(*commit.next);
}

void Truth::OnPlan(const Plan& plan) {
  if (plan.relaxed) relaxed_.insert(plan.round);
  const auto [at, first] = plans_.emplace(plan.round, plan.attempt);
  if (first || at->second >= plan.attempt) return;
  at->second = plan.attempt;
  // The earlier sealed parts are about to be replaced, and somebody may still apply them.
  const auto last = commits_.lower_bound({plan.round.Next(), Attempt(0)});
  if (last != commits_.begin() && std::prev(last)->first.first == plan.round) {
    Learn(std::prev(last)->second);
  }
  std::erase_if(chosen_, [&](const auto& c) { return std::get<1>(c.first) == plan.round; });
}

void Truth::Choose(const msg::Commit& commit) {
  for (const CommittedPart& part : commit.parts) {
    const PartKey key(part.member, commit.round, part.part);
    if (chosen_.contains(key)) continue;  // of an earlier attempt
    const SealedPart* last = nullptr;
    for (auto at = sealed_.lower_bound({part.member, RoundId(0), PartIndex(0)});
         at != sealed_.end() && std::get<0>(at->first) == part.member; ++at) {
      if (std::get<2>(at->first) != part.part) continue;
      if (last != nullptr && at->second.sequence < last->sequence) continue;
      last = &at->second;
      chosen_.insert_or_assign(key, at->first);
    }
  }
}

const Truth::SealedPart* Truth::FindSealed(const msg::Commit& commit,
                                           const CommittedPart& part) const {
  PartKey key(part.member, commit.round, part.part);
  if (const auto chosen = chosen_.find(key); chosen != chosen_.end()) key = chosen->second;
  const auto at = sealed_.find(key);
  return at == sealed_.end() ? nullptr : &at->second;
}

// A contributor to a round has computed with the result of the round before; in a relaxed round,
// with the result of some earlier round.
void Truth::CheckContributors(const msg::Commit& commit) {
  if (commit.round.value == 0) return;
  const auto before = truth_.find(RoundId(commit.round.value - 1));
  if (before == truth_.end()) return;
  std::set<std::uint64_t> expected = {before->second.digest};
  if (relaxed_.contains(commit.round)) {
    if (truth_.contains(RoundId(0)) && initial_) expected.insert(DigestOf(*initial_));
    for (const auto& [round, known] : truth_) expected.insert(known.digest);
  }
  for (const CommittedPart& part : commit.parts) {
    const SealedPart* sealed = FindSealed(commit, part);
    if (sealed != nullptr && !expected.contains(sealed->state_digest)) {
      Complain(part.member,
               fmt::format("its part {} of round {} was computed with other parameters than those "
                           "after round {}",
                           part.part, commit.round, before->first));
    }
  }
}

void Truth::OnSealed(const MemberId& member, RoundId round, PartIndex part,
                     std::vector<float> gradient, const State& state) {
  sealed_[{member, round, part}] = {std::move(gradient), DigestOf(state), ++next_sequence_};
}

// Adds the parts one after the other, in the order of the commit.
bool Truth::AddParts(const msg::Commit& commit, const MemberId* of, bool first,
                     std::vector<float>* sum) const {
  for (const CommittedPart& part : commit.parts) {
    if (of != nullptr && part.member != *of) continue;
    const SealedPart* sealed = FindSealed(commit, part);
    if (sealed == nullptr) return false;
    for (std::uint64_t i = 0; i < sealed->gradient.size(); ++i) {
      const float term = part.weight * sealed->gradient[i];
      (*sum)[i] = first && layout_.kept() == 0 ? term : (*sum)[i] + term;
    }
    first = false;
  }
  return true;
}

// The sum that a member of a tree passes upwards: those from below in their order, then its own
// parts.
std::optional<std::vector<float>> Truth::SumOfTree(const msg::Commit& commit, std::uint32_t shard,
                                                   const MemberId& member) const {
  std::vector<float> sum(layout_.sum_floats());
  bool first = true;
  for (const MemberId& below : RouteOf(commit, shard, member).below) {
    const auto partial = SumOfTree(commit, shard, below);
    if (!partial) return std::nullopt;
    for (std::uint64_t i = 0; i < layout_.parameter_count(); ++i) {
      sum[i] = first ? (*partial)[i] : sum[i] + (*partial)[i];
    }
    first = false;
  }
  if (!AddParts(commit, &member, first, &sum)) return std::nullopt;
  return sum;
}

// Direct and ring add in the same order.
std::optional<std::vector<float>> Truth::SumOf(const msg::Commit& commit) const {
  std::vector<float> sum(layout_.sum_floats(), 0.0f);
  if (commit.owners.algorithm != ExchangeAlgorithm::kTree) {
    if (!AddParts(commit, nullptr, true, &sum)) return std::nullopt;
    return sum;
  }
  for (std::uint32_t shard = 0; shard < commit.owners.owners.size(); ++shard) {
    const MemberId& owner = commit.owners.owners[shard].owner;
    const auto whole = SumOfTree(commit, shard, owner);
    if (!whole) return std::nullopt;
    for (const worker::Slice& slice : layout_.Shard(commit.owners, owner)) {
      const auto from = static_cast<std::ptrdiff_t>(slice.range.first);
      std::copy_n(whole->begin() + from, slice.range.count, sum.begin() + from);
    }
  }
  return sum;
}

std::optional<State> Truth::Compute(const msg::Commit& commit) {
  State state;
  if (commit.round.value == 0) {
    if (!initial_) return std::nullopt;
    state = *initial_;
  } else {
    const auto before = truth_.find(RoundId(commit.round.value - 1));
    if (before == truth_.end()) return std::nullopt;
    state = before->second.state;
  }
  std::optional<std::vector<float>> sum = SumOf(commit);
  if (!sum) return std::nullopt;
  std::vector<worker::FloatRange> all;
  std::vector<std::uint32_t> buckets;
  for (std::uint32_t b = 0; b < layout_.bucket_count(); ++b) {
    AddNorms(layout_, {b, layout_.bucket(b)}, &*sum);
    all.push_back(layout_.bucket(b));
    buckets.push_back(b);
  }
  const float factor = ClipFactor(layout_, *sum, commit.scale, clip_);
  if (layout_.rank() > 0) {
    UpdateFactored(factors_, layout_, commit.round, *sum, buckets, commit.scale,
                   commit.learning_rate, commit.fraction, factor, &state);
    return state;
  }
  Update(*sum, all, commit.scale, commit.learning_rate, commit.fraction, factor, &state);
  return state;
}

bool Truth::Learn(const msg::Commit& commit) {
  auto computed = Compute(commit);
  if (!computed) return false;
  const std::uint64_t digest = DigestOf(*computed);
  truth_[commit.round] = {commit.attempt, std::move(*computed), digest};
  return true;
}

void Truth::OnSent(const MemberId& member, RoundId round, PartIndex part,
                   std::span<const float> gradient, std::span<const float> sent,
                   std::span<const float> factors) {
  const std::string error = residuals_.OnSent(member, round, part, gradient, sent, factors);
  if (!error.empty()) Complain(member, error);
}

void Truth::OnSaidApplied(const MemberId& member, RoundId round, Attempt attempt) {
  const auto commit = commits_.find({round, attempt});
  if (commit != commits_.end()) residuals_.OnApplied(member, round, commit->second.parts);
}

void Truth::OnApplied(const MemberId& member, RoundId round, Attempt attempt, const State& state) {
  const std::string error = CheckApplied(round, attempt, state);
  if (!error.empty()) Complain(member, error);
}

std::string Truth::CheckApplied(RoundId round, Attempt attempt, const State& state) {
  auto known = truth_.find(round);
  if (known == truth_.end() || known->second.attempt < attempt) {
    const auto commit = commits_.find({round, attempt});
    if (commit == commits_.end() && round < oldest_) return "";  // too long ago to be known
    if (commit == commits_.end()) return "a round was applied that was not committed";
    if (!Learn(commit->second)) return "nobody knows what it came to";
    known = truth_.find(round);
  }
  // It is an attempt that was replaced by another one, applied by a member that is out.
  if (known->second.attempt != attempt) return "";
  ++applied_;
  if (SameBits(known->second.state.parameters, state.parameters) &&
      (sharded_ || SameState(known->second.state, state))) {
    return "";
  }
  for (std::uint64_t i = 0; i < layout_.parameter_count(); ++i) {
    if (known->second.state.parameters[i] == state.parameters[i]) continue;
    return fmt::format("round {} attempt {}: parameter {} is {}, not {}", round, attempt, i,
                       state.parameters[i], known->second.state.parameters[i]);
  }
  return fmt::format("round {} attempt {}: the optimizer's state differs", round, attempt);
}

void Truth::OnHeld(const MemberId& member, RoundId round, Attempt attempt,
                   const std::vector<FloatRange>& ranges, const State& state) {
  auto known = truth_.find(round);
  if (known == truth_.end() || known->second.attempt < attempt) {
    const auto commit = commits_.find({round, attempt});
    if (commit == commits_.end() || !Learn(commit->second)) return;
    known = truth_.find(round);
  }
  if (known->second.attempt != attempt) return;
  ++applied_;
  for (const FloatRange& range : ranges) {
    if (SameIn(range, known->second.state.parameters, state.parameters) &&
        SameIn(range, known->second.state.momentum, state.momentum)) {
      continue;
    }
    Complain(member,
             fmt::format("round {} attempt {}: its parameters in [{}, {}) are not the truth", round,
                         attempt, range.begin(), range.end()));
  }
}

void Truth::OnLevel(const MemberId& member, RoundId next, const State& state) {
  residuals_.OnCopied(member);
  const auto known = truth_.find(RoundId(next.value - 1));
  if (known == truth_.end()) return;
  ++caught_up_;
  // It compares bits, not numbers: infinite values and NaNs compare as well.
  if (!SameBits(known->second.state.parameters, state.parameters) ||
      (!sharded_ && !SameState(known->second.state, state))) {
    Complain(member, fmt::format("caught up to round {} wrongly", next));
  }
}

void Truth::OnCheckpoint(RoundId next, const State& state) {
  const auto known = truth_.find(RoundId(next.value - 1));
  if (known == truth_.end() || known->second.state == state) return;
  errors_.push_back(fmt::format("the checkpoint before round {} is not its state", next));
}

bool Truth::Finite() const {
  if (truth_.empty()) return true;
  const State& state = truth_.rbegin()->second.state;
  const auto finite = [](float value) { return std::isfinite(value); };
  return std::ranges::all_of(state.parameters, finite) &&
         std::ranges::all_of(state.momentum, finite) && std::ranges::all_of(state.factors, finite);
}

void Truth::OnResumed(RoundId next, State state) {
  taken_over_after_ = crashes_;
  commits_.clear();
  residuals_.Clear();
  sealed_.clear();
  chosen_.clear();
  plans_.clear();
  relaxed_.clear();
  truth_.clear();
  const std::uint64_t digest = DigestOf(state);
  truth_[RoundId(next.value - 1)] = {Attempt(0), std::move(state), digest};
  oldest_ = RoundId(next.value - 1);
}

void Truth::OnTakenOver(RoundId next) {
  taken_over_after_ = crashes_;
  residuals_.Clear();
  std::erase_if(commits_, [&](const auto& c) { return c.first.first >= next; });
  std::erase_if(sealed_, [&](const auto& s) { return std::get<1>(s.first) >= next; });
  std::erase_if(chosen_, [&](const auto& c) { return std::get<1>(c.first) >= next; });
  std::erase_if(plans_, [&](const auto& p) { return p.first >= next; });
  std::erase_if(relaxed_, [&](const auto& r) { return r >= next; });
  std::erase_if(truth_, [&](const auto& t) { return t.first >= next; });
  same_for_all_ = false;
}

void Truth::OnHolds(const MemberId& member, RoundId next, const State& state,
                    const std::vector<FloatRange>& ranges) {
  if (next == RoundId(0)) return;  // the first attempt at round 0 shows it
  const RoundId round(next.value - 1);
  const auto holds = [&] {
    const auto known = truth_.find(round);
    if (known == truth_.end()) return false;
    const State& truth = known->second.state;
    if (!sharded_) {
      return SameBits(truth.parameters, state.parameters) && SameState(truth, state);
    }
    return std::ranges::all_of(ranges, [&](const FloatRange& range) {
      return SameIn(range, truth.parameters, state.parameters) &&
             SameIn(range, truth.momentum, state.momentum);
    });
  };
  const bool decides = !std::exchange(same_for_all_, true);
  if (!decides && round < oldest_) return;  // it was told long ago, and hears it now
  if (decides && !holds()) {
    for (auto at = commits_.lower_bound({round, Attempt(0)});
         at != commits_.end() && at->first.first == round; ++at) {
      if (Learn(at->second) && holds()) break;
    }
  }
  ++applied_;
  if (!holds()) {
    Complain(member, fmt::format("the job goes on before round {} from parameters that {}", next,
                                 decides ? "no attempt came to" : "another worker has not"));
  }
}

}  // namespace lockstep::simulate
