// The all-reduce by owners. An owner reduces its shard once all parts of the commit are here, and
// publishes it; the other shards come, each from its owner.
//
// When an owner is silent while others have published, one of these stands in for it: it makes the
// same sums once more, out of the same parts, and everybody takes them from whichever of the two is
// first. Which bits come out is fixed by the commit (I1), so nobody has to be asked or fenced.
#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "worker/core/all_reduce.h"

namespace lockstep::worker {
namespace {

class DirectSums final : public AllReduce {
 public:
  using AllReduce::AllReduce;

  void Update() override {
    for (SumShard& shard : sums_) {
      if (!sums_.Held(shard)) Take(shard);
    }
    for (SumShard& shard : sums_) TryReduce(shard);
  }

  bool OnHedge(const MemberId& owner, const MemberId& by) override {
    SumShard* shard = sums_.Of(owner);
    if (shard == nullptr || !stand_ins_.emplace(owner, by).second) return false;
    if (by != context_.config.self) return false;
    shard->making = Making::kWaiting;
    if (shard->requested || (!shard->mapped && sums_.Held(*shard))) return false;
    sums_.StandIn(*shard);
    return true;
  }

  bool OnOpDone(const event::OpDone& done) override {
    const auto made = reductions_.find(done.op);
    if (made == reductions_.end()) return false;
    SumShard& shard = sums_[made->second];
    reductions_.erase(made);
    if (done.torn) {
      // A contributor has gone on, so this attempt is history, as the coordinator will say; or its
      // owner was quicker than who stands in for it, which is as it should be.
      shard.making = Making::kVoid;
      if (shard.owner == context_.config.self && !std::exchange(context_.told_of_torn_sum, true)) {
        context_.Log(
            fmt::format("round {}: another worker went on to its next round while this one added "
                        "up its gradient; the sum is made again where it is needed, and nothing "
                        "is lost. Later rounds do not log this",
                        commit_.round));
      }
    } else if (!done.not_finite.empty()) {
      // Nobody who makes it publishes it, so nobody ever holds all of this attempt (I1).
      shard.making = Making::kVoid;
      context_.Tell(msg::NotFinite{
          commit_.round, commit_.attempt, {done.not_finite.begin(), done.not_finite.end()}});
    } else {
      sums_.NoteMade(shard);
      Publish(shard);
    }
    return true;
  }

  void OnPeerUp(const MemberId& peer) override {
    if (!std::ranges::binary_search(commit_.members, peer)) return;
    for (const SumShard& shard : sums_) {
      if (shard.making == Making::kPublished) SaySumReady(peer, shard);
    }
  }

  bool Writes(const SumShard& shard) const override { return shard.making == Making::kReducing; }

  MemberId SourceOf(const SumShard& shard) const override {
    const auto stand_in = stand_ins_.find(shard.owner);
    return stand_in == stand_ins_.end() || with_.peers.Up(shard.owner) ? shard.owner
                                                                       : stand_in->second;
  }

  std::string Missing(const SumShard& shard) const override {
    std::string text;
    if (const auto by = stand_ins_.find(shard.owner); by != stand_ins_.end()) {
      text += " or " + (by->second == context_.config.self ? "itself" : Name(by->second));
    }
    return shard.making == Making::kWaiting ? text + PartsMissing(shard) : text;
  }

  void CheckInvariants() const override {
    std::size_t reducing = 0;
    for (const SumShard& shard : sums_) {
      reducing += shard.making == Making::kReducing ? 1 : 0;
      const auto by = stand_ins_.find(shard.owner);
      LOCKSTEP_CHECK(shard.making == Making::kNone || shard.owner == context_.config.self ||
                         (by != stand_ins_.end() && by->second == context_.config.self),
                     "round {}: {}'s shard is made here", commit_.round, Name(shard.owner));
    }
    LOCKSTEP_CHECK(reducing == reductions_.size(), "round {}: a reduction that nobody waits for",
                   commit_.round);
  }

 private:
  // --- the shards that are made here

  // Where the part's gradients can be read.
  std::optional<Source> InputOf(const CommittedPart& part, const SumShard& shard) const {
    if (part.member != context_.config.self) {
      return with_.inputs.Complete(commit_.round, part.member, part.part, shard.slices);
    }
    const auto own = with_.own.Sealed(commit_.round, part.part);
    if (!own) return std::nullopt;
    return Source{*own, std::nullopt, 0};
  }

  // A sum is a function of the commit: the parts in its order, with its weights, however they are
  // reached. So the reduction waits until all of them are here.
  void TryReduce(SumShard& shard) {
    if (shard.making != Making::kWaiting) return;
    if (shard.slices.empty()) return Publish(shard);
    // The other one that makes it was quicker. What has come may be all that anybody has of it,
    // where that one stops now: so it is published here, too.
    if (!shard.mapped && sums_.Held(shard)) {
      return sums_.apart() && !shard.made ? CopyToPublish(shard) : Publish(shard);
    }
    if (shard.requested) return;
    for (const FloatRange& range : shard.ranges) {
      // The one that was asked is gone, and it may still land.
      if (sums_.asked().Intersects(range)) return;
      if (!sums_.have().Intersects(range)) continue;
      // Half of it has come, and may be on its way to others: nothing is written over that.
      shard.making = Making::kVoid;
      return;
    }
    action::Reduce reduce;
    std::vector<BufferId> uses;
    for (const CommittedPart& part : commit_.parts) {
      const std::optional<Source> source = InputOf(part, shard);
      if (!source) return;
      if (!source->peer) uses.push_back(source->buffer);
      reduce.inputs.push_back({*source, part.weight});
    }
    if (!sums_.TakeBuffers()) return;
    uses.push_back(*sums_.buffer());
    reduce.op = context_.NewOp();
    reduce.round = commit_.round;
    reduce.attempt = commit_.attempt;
    reduce.slices = shard.slices;
    reduce.out = *sums_.buffer();
    reduce.norms = context_.config.clip > 0;
    Begin(shard, reduce.op, std::move(uses));
    context_.Emit(std::move(reduce));
  }

  // Whoever maps this worker reads what it publishes in the one buffer only.
  void CopyToPublish(SumShard& shard) {
    if (!sums_.TakeBuffers()) return;
    action::CopySums copy;
    copy.op = context_.NewOp();
    copy.to = *sums_.buffer();
    const Source from = sums_.SourceOf(shard);
    for (const FloatRange& range : shard.ranges) copy.from.push_back({from, range});
    Begin(shard, copy.op, {from.buffer, copy.to});
    context_.Emit(std::move(copy));
  }

  void Begin(SumShard& shard, std::uint64_t op, std::vector<BufferId> uses) {
    with_.buffers.BeginOp(op, std::move(uses));
    reductions_.emplace(op, shard.index);
    shard.making = Making::kReducing;
  }

  // Said to those who are up; who comes later is told then (OnPeerUp).
  void Publish(SumShard& shard) {
    sums_.Publish(shard);
    for (const MemberId& member : commit_.members) SaySumReady(member, shard);
  }

  // A small shard rides along; a peer that maps reads it in place and needs no bytes.
  void SaySumReady(const MemberId& to, const SumShard& shard) {
    if (to == context_.config.self || !with_.peers.Up(to) || !sums_.buffer()) return;
    SumReady ready = sums_.Announcement();
    if (shard.owner != context_.config.self) ready.stands_in_for = shard.owner.worker;
    std::vector<BufferRange> payload;
    if (!with_.peers.Mapped(to)) {
      ready.inlined.ranges = shard.ranges;
      if (ready.inlined.Floats() * context_.layout.number_bytes() > context_.config.inline_bytes ||
          ready.inlined.ranges.size() > kMaxInlineRanges) {
        ready.inlined.ranges.clear();
      }
      for (const FloatRange& range : ready.inlined.ranges) {
        payload.push_back({*sums_.buffer(), range});
      }
    }
    context_.Say(to, ready, std::move(payload));
  }

  std::string PartsMissing(const SumShard& shard) const {
    std::string text;
    for (const CommittedPart& part : commit_.parts) {
      if (InputOf(part, shard)) continue;
      text += fmt::format("{}part {} of {}", text.empty() ? " (lacks " : ", ", part.part,
                          Name(part.member));
    }
    return text.empty() ? text : text + ")";
  }

  // --- the other shards

  // The owner, or who stands in for it, whoever says so first; null while neither has. What an
  // owner said that is gone by now is of no use, unless its memory is still mapped.
  const HeardSums::Heard* WhereReady(const SumShard& shard, MemberId& from) const {
    from = shard.owner;
    const HeardSums::Heard* heard = with_.heard.Find(from, commit_);
    const auto by = stand_ins_.find(shard.owner);
    if (by == stand_ins_.end() ||
        (heard != nullptr && (with_.peers.Up(from) || with_.peers.Mapped(from)))) {
      return heard;
    }
    from = by->second;
    return with_.heard.FindStandIn(from, shard.owner.worker, commit_);
  }

  // Gets one shard on its way, once its owner, or who stands in for it, says that it is there: read
  // in place where mapped, else what rode along, else fetched.
  void Take(SumShard& shard) {
    if (shard.requested || sums_.gone() || Writes(shard)) return;
    // The own shard is made here, unless that cannot be done any more.
    if (shard.owner == context_.config.self && !stand_ins_.contains(shard.owner)) return;
    MemberId from;
    const HeardSums::Heard* heard = WhereReady(shard, from);
    if (heard == nullptr || from == context_.config.self) return;
    if (with_.peers.Mapped(from)) {
      shard.mapped =
          Source{{BufferKind::kSum, heard->ready.buffer, {}}, from, heard->ready.generation};
      return;
    }
    if (!sums_.TakeBuffers()) return;
    if (StoreInlined(shard, *heard) || !with_.peers.Up(from)) return;
    sums_.FetchShard(shard, from);
  }

  // The floats that rode along count only if they are ranges of the shard: an owner cuts the same
  // map alike, and may say more than is held here.
  bool StoreInlined(const SumShard& shard, const HeardSums::Heard& heard) {
    std::span<const std::byte> floats = heard.floats;
    for (const FloatRange& range : heard.ready.inlined.ranges) {
      const std::size_t bytes = range.count * context_.layout.number_bytes();
      const bool wanted = std::ranges::find(shard.ranges, range) != shard.ranges.end();
      // What was asked for may land at any time.
      if (wanted && !sums_.asked().Intersects(range)) {
        context_.Emit(action::StoreInline{{sums_.Landing(), range}, floats.first(bytes)});
        sums_.Add(range);
      }
      floats = floats.subspan(bytes);
    }
    return sums_.Held(shard);
  }

  std::map<MemberId, MemberId> stand_ins_;             // who makes it as well, by owner
  std::map<std::uint64_t, std::uint32_t> reductions_;  // shards that operations make, by operation
};

}  // namespace

std::unique_ptr<AllReduce> MakeDirectSums(const SumsContext& with, const msg::Commit& commit,
                                          SumShards& sums) {
  return std::make_unique<DirectSums>(with, commit, sums);
}

}  // namespace lockstep::worker
