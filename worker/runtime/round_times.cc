#include "worker/runtime/round_times.h"

#include <utility>

namespace lockstep::worker {
namespace {

// Rounds that are begun and never applied (this worker was put behind) are forgotten.
constexpr std::size_t kOpen = 8;

}  // namespace

RoundTimes& RoundClock::Of(RoundId round) {
  if (!open_.contains(round) && open_.size() == kOpen) open_.erase(open_.begin());
  RoundTimes& times = open_[round];
  times.round = round;
  return times;
}

void RoundClock::Saw(Time now, const Event& event) {
  if (!report_) return;
  if (const auto* heard = std::get_if<event::FromCoordinator>(&event)) {
    const auto* commit = std::get_if<msg::Commit>(&heard->message);
    if (commit != nullptr) Of(commit->round).committed = now;
  } else if (const auto* done = std::get_if<event::OpDone>(&event)) {
    const auto reduce = reduces_.find(done->op);
    if (reduce == reduces_.end()) return;
    Of(reduce->second).reduced = now;
    reduces_.erase(reduce);
  }
}

void RoundClock::Saw(Time now, const Action& action) {
  if (!report_) return;
  if (const auto* fetch = std::get_if<action::Fetch>(&action)) {
    copied_ += fetch->to.range.count * NumberBytes(fetch->to.buffer.kind, number_bytes_);
  } else if (const auto* store = std::get_if<action::StoreInline>(&action)) {
    copied_ += store->bytes.size();
  } else if (const auto* copy = std::get_if<action::CopySums>(&action)) {
    for (const action::SourceRange& from : copy->from) {
      copied_ += from.range.count * number_bytes_;
    }
  } else if (const auto* reduce = std::get_if<action::Reduce>(&action)) {
    if (reduces_.size() == kOpen) reduces_.erase(reduces_.begin());
    reduces_[reduce->op] = reduce->round;
  } else if (const auto* apply = std::get_if<action::Apply>(&action)) {
    Of(apply->round).taken = now;
  } else if (const auto* told = std::get_if<action::ToCoordinator>(&action)) {
    if (const auto* sealed = std::get_if<msg::Sealed>(&told->message)) {
      Of(sealed->round).sealed = Time(Duration(sealed->sealed_ns));
    } else if (const auto* receipts = std::get_if<msg::Receipts>(&told->message)) {
      Of(receipts->round).delivered = now;
    } else if (const auto* published = std::get_if<msg::Published>(&told->message)) {
      Of(published->round).published = now;
    } else if (const auto* applied = std::get_if<msg::Applied>(&told->message)) {
      RoundTimes times = Of(applied->round);
      times.applied = Time(Duration(applied->applied_ns));
      times.copied = std::exchange(copied_, 0);
      open_.erase(open_.begin(), open_.upper_bound(applied->round));
      report_(times);
    }
  }
}

}  // namespace lockstep::worker
