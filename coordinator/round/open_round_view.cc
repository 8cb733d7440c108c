// The round as policies see it, renewed with each change so that judging costs no pass over the
// workers.
#include <algorithm>

#include "coordinator/round/open_round.h"

namespace lockstep::coordinator {

void OpenRound::SyncHistory(const Member& member) {
  const std::int64_t at = index_[member.id.worker.value];
  if (at < 0) return;
  policies::WorkerView& view = views_[static_cast<std::size_t>(at)];
  view.last_heard = member.last_heard;
  view.unit_time_mean = member.unit_times.mean;
  view.unit_time_deviation = member.unit_times.deviation;
}

void OpenRound::NoteApplied(const Member& member, Time now) {
  const std::int64_t at = index_[member.id.worker.value];
  if (at < 0) return;
  policies::WorkerView& view = views_[static_cast<std::size_t>(at)];
  if (view.member != member.id) return;
  if (!view.level && member.next >= round && view.units_done == 0 && !relaxed) {
    view.progressed_at = now;  // it could not begin before
  }
  view.level = member.next >= round;
}

void OpenRound::UpdateDelivered(WorkerShare* share, Time now) {
  const WorkerId worker = share->member.worker;
  for (std::size_t i = 0; i < share->parts.size(); ++i) {
    SealedPart& part = share->parts[i];
    if (part.is_void) continue;
    const bool delivered = delivery.Delivered(worker, PartIndex(static_cast<std::uint8_t>(i)));
    if (delivered && !part.delivered_at) {
      part.delivered_at = now;
      --undelivered;
    } else if (!delivered && part.delivered_at) {
      part.delivered_at.reset();
      ++undelivered;
    }
  }
  Refresh(*share, now);
}

void OpenRound::Refresh(const WorkerShare& share, Time now) {
  policies::WorkerView& view = views_[static_cast<std::size_t>(index_[share.member.worker.value])];
  if (view.units_given > 0) {
    --with_units_;
    finished_ -= view.finished_at ? 1 : 0;
  }
  view.units_given = static_cast<std::uint32_t>(share.queue.size());
  view.units_done = std::clamp(view.units_done, share.sealed_units, view.units_given);
  view.units_taken = std::clamp(view.units_taken, view.units_done, view.units_given);
  view.takes_units = share.HasRoom() && !view.fenced;
  view.revoking = share.revoke.has_value();
  view.samples_given = 0;
  for (const UnitIndex unit : share.queue) view.samples_given += units_[unit.value].size();
  view.parts.clear();
  bool all_delivered = share.sealed_units == share.queue.size();
  for (std::size_t i = 0; i < share.parts.size(); ++i) {
    const SealedPart& part = share.parts[i];
    if (part.is_void) continue;
    view.parts.push_back(
        {PartIndex(static_cast<std::uint8_t>(i)), part.samples, part.ready_at, part.delivered_at});
    all_delivered = all_delivered && part.delivered_at.has_value();
  }
  if (!all_delivered) {
    view.finished_at.reset();
  } else if (!view.finished_at) {
    view.finished_at = now;
  }
  if (view.units_given > 0) {
    ++with_units_;
    finished_ += view.finished_at ? 1 : 0;
  }
}

// A third of what is new: a single slow unit does not make a slow worker. What comes first holds
// the round's beginning too (the last round's sums are taken and applied), so it counts only where
// nothing else is known.
void OpenRound::NotePace(policies::WorkerView* view, std::uint32_t units, Time now) {
  const Duration sample = std::max((now - view->progressed_at) / units, Duration(1));
  const bool first = view->pace == Duration{};
  view->progressed_at = now;
  if (first) {
    view->pace = view->unit_time_mean > Duration{} ? view->unit_time_mean : sample;
  } else {
    view->pace += (sample - view->pace) / 3;
  }
}

std::vector<LinkResponse> OpenRound::Responses(Time now) const {
  const PartIndex first(0);
  std::vector<LinkResponse> responses;
  std::vector<std::size_t> at(index_.size(), index_.size());  // in `responses`, by slot
  std::vector<WorkerId> missing;
  std::size_t sealed = 0;
  for (const WorkerShare& share : shares_) {
    const SealedPart* part = Part(share.member.worker, first);
    if (part == nullptr) continue;
    ++sealed;
    if (!part->delivered_at) missing.push_back(share.member.worker);
    at[share.member.worker.value] = responses.size();
    responses.push_back({.member = share.member,
                         .receipts = std::nullopt,
                         .delivery = part->delivered_at.value_or(now) - part->ready_at,
                         .delivered = part->delivered_at.has_value()});
  }
  for (const OwnerShare& share : owners.owners) {
    const WorkerId owner = share.owner.worker;
    std::vector<Duration> late = receipts_late_[owner.value];
    for (const WorkerId contributor : missing) {
      if (delivery.Lacks(owner, contributor, first)) {
        late.push_back(now - Part(contributor, first)->ready_at);
      }
    }
    // The others are mapped with it: received when ready, which is sooner than all of `late`.
    const std::size_t all = std::max(late.size(), sealed - (Part(owner, first) != nullptr ? 1 : 0));
    if (all == 0) continue;
    const std::size_t at_once = all - late.size();
    Duration response_time{};
    if (const std::size_t quartile = (all - 1) / 4; quartile >= at_once) {
      const auto place = late.begin() + static_cast<std::ptrdiff_t>(quartile - at_once);
      std::nth_element(late.begin(), place, late.end());
      response_time = *place;
    }
    std::size_t& response = at[owner.value];
    if (response == at.size()) {
      response = responses.size();
      responses.push_back({.member = share.owner, .receipts = {}, .delivery = {}});
    }
    responses[response].receipts = response_time;
  }
  return responses;
}

policies::RoundView OpenRound::View(Time now, std::uint32_t configured_workers) const {
  policies::RoundView view;
  view.round = round;
  view.epoch = epoch;
  view.now = now;
  view.started = started;
  view.exact = exact;
  view.configured_workers = configured_workers;
  view.planned_workers = planned_workers_;
  view.with_units = with_units_;
  view.finished = finished_;
  view.pending_revokes = pending_revokes;
  view.samples_planned = samples;
  view.workers = views_;
  return view;
}

void OpenRound::ViewIfDelivered(Time now, std::uint32_t configured_workers,
                                Hypothetical* out) const {
  out->workers = views_;
  out->view = View(now, configured_workers);
  out->view.finished = 0;
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    policies::WorkerView& worker = out->workers[i];
    for (policies::PartView& part : worker.parts) part.delivered_at = part.ready_at;
    const bool sealed = shares_[i].sealed_units == shares_[i].queue.size();
    if (sealed && !worker.finished_at) worker.finished_at = now;
    if (worker.units_given > 0 && worker.finished_at) ++out->view.finished;
  }
  out->view.workers = out->workers;
}

}  // namespace lockstep::coordinator
