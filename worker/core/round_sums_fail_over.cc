// RoundSums where something fails: an owner is lost, the coordinator asks what is held and says who
// has all, or a job stands still and says for what.
#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "worker/core/round_sums.h"

namespace lockstep::worker {

// Nothing is known of the shards that were mapped: they are fetched again, if anybody still has
// them.
void RoundSums::OnTornApply() {
  applied_ = false;
  all_held_ = false;
  gone_ = "its mapped sums changed";
  for (Shard& shard : shards_) shard.mapped.reset();
}

// The coordinator found the attempt whole somewhere, so it stands and every promise about it ends.
void RoundSums::OnTakeSums(const MemberId& holder) {
  fenced_ = false;
  gone_.reset();
  if (holder == context_.config.self) {
    named_ = true;
    return;
  }
  holder_ = Holder{holder};
  // From now on the holder is asked for all that is missing, the own shard too.
  for (Shard& shard : shards_) {
    if (shard.making == Making::kWaiting) shard.making = Making::kVoid;
    shard.requested.reset();
  }
  const auto dropped = fetcher_.Cancel([&](const Want& want) {
    return want.piece.kind == static_cast<std::uint32_t>(PieceKind::kSum) &&
           want.piece.round == commit_.round.value && want.peer != holder;
  });
  for (const Want& want : dropped) OnDropped(want);
}

// "Do you hold all shards of it?" may come again under another order number; the last one is
// answered, and none when the round is closed.
void RoundSums::OnFenceAttempt(const msg::FenceAttempt& fence) {
  if (own_only_) return;
  asked_to_hold_ = fence;
  TryAnswerHold();
}

// "Yes" promises that others can fetch everything from here, so what is only read through the
// mapping is copied first. "No" promises not to apply.
void RoundSums::TryAnswerHold() {
  LOCKSTEP_CHECK(
      asked_to_hold_->round == commit_.round && asked_to_hold_->attempt == commit_.attempt,
      "a promise about another attempt than round {} has", commit_.round);
  const bool holds = applied_ || HoldsAll();
  if (holds && !Localize()) return;
  (holds ? named_ : fenced_) = true;
  const msg::FenceAttempt fence = *asked_to_hold_;
  asked_to_hold_.reset();
  context_.Tell(msg::HoldAnswer{fence.term, fence.round, fence.attempt, holds, fence.order});
}

// Mapped shards lie in a memory that may go with its owner.
bool RoundSums::Localize() {
  if (copy_op_) return false;
  action::CopySums copy;
  for (const Shard& shard : shards_) {
    if (!shard.mapped || gone_) continue;
    for (const FloatRange& range : shard.ranges) copy.from.push_back({*shard.mapped, range});
  }
  if (copy.from.empty()) return true;
  if (!TakeBuffers()) return false;
  copy.op = context_.NewOp();
  copy.to = Landing();
  buffers_.BeginOp(copy.op, {copy.to});
  copy_op_ = copy.op;
  context_.Emit(std::move(copy));
  return false;
}

// Asked once for each connection: the holder may first have to copy what it reads in place.
void RoundSums::AskHolder() {
  if (!holder_ || holder_->state != Holder::State::kToAsk || HoldsAll() ||
      !peers_.Up(holder_->member)) {
    return;
  }
  holder_->state = Holder::State::kAsked;
  context_.Say(holder_->member, SumWant{context_.config.term, commit_.round, commit_.attempt});
}

bool RoundSums::OnSumWant(const MemberId& peer) {
  if (!HoldsAll() || own_only_) return false;
  named_ = true;
  wanted_by_.insert(peer);
  return true;
}

// Only when everything lies in the own buffer may others be sent here.
void RoundSums::TryServeAll() {
  if (wanted_by_.empty() || !Localize()) return;
  for (const MemberId& peer : std::exchange(wanted_by_, {})) {
    SumReady ready = Announcement();
    ready.whole = HoldsAll();
    ready.gone = !ready.whole;
    context_.Say(peer, ready);
  }
}

// A shard whose source is up is on its way, however slowly.
std::optional<std::string> RoundSums::Lost() const {
  if (HoldsAll()) return std::nullopt;
  if (gone_) return *gone_;
  if (fenced_) return std::string("its attempt was fenced");
  for (const Shard& shard : shards_) {
    MemberId from = holder_ ? holder_->member : shard.owner;
    if (!holder_ && shard.stand_in && !peers_.Up(from)) from = *shard.stand_in;
    if (!holder_ && routed_) from = routed_->Above(IndexOf(shard)).value_or(context_.config.self);
    // Who stands in and cannot make it has it from its owner or not at all.
    if (from != shard.owner && shard.making == Making::kVoid) from = shard.owner;
    if (!Held(shard) && from != context_.config.self && !peers_.Up(from)) {
      return fmt::format("{} is lost, which has its sums", Name(from));
    }
  }
  return std::nullopt;
}

// What keeps a shard from being reduced.
std::string RoundSums::PartsMissing(const Shard& shard) const {
  std::string text;
  for (const CommittedPart& part : commit_.parts) {
    if (SourceOf(part, shard)) continue;
    text += fmt::format("{}part {} of {}", text.empty() ? " (lacks " : ", ", part.part,
                        Name(part.member));
  }
  return text.empty() ? text : text + ")";
}

// Names every shard that is waited for, and why it may never come: the first thing that is read
// when a job stands still.
std::string RoundSums::Missing() const {
  std::string text;
  for (const Shard& shard : shards_) {
    if (Held(shard)) continue;
    text += text.empty()
                ? fmt::format("sums of round {} attempt {} from ", commit_.round, commit_.attempt)
                : std::string(", ");
    text += shard.owner == context_.config.self ? "itself" : Name(shard.owner);
    if (shard.stand_in) {
      text += " or " + (shard.stand_in == context_.config.self ? "itself" : Name(*shard.stand_in));
    }
    if (routed_) {
      text += routed_->Missing(IndexOf(shard));
    } else if (shard.making == Making::kWaiting) {
      text += PartsMissing(shard);
    }
    if (shard.requested) text += " (asked for)";
  }
  if (holder_) text += fmt::format(", held by {}", Name(holder_->member));
  if (fenced_) text += ", fenced";
  if (gone_) text += ", " + *gone_;
  return text;
}

}  // namespace lockstep::worker
