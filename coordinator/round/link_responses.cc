#include "coordinator/round/link_responses.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "base/check.h"

namespace lockstep::coordinator {

// An owner's response is the lower quartile over its contributors: a receipt takes two, and a few
// slow contributors say nothing about the owner. A contributor that is still not delivered counts
// with the time that has passed, so that who never answers does not look quick.
std::vector<LinkResponse> LinkResponses(const RoundWork& work, Time now) {
  const PartIndex first(0);
  std::vector<LinkResponse> responses;
  constexpr std::size_t kNone = ~std::size_t{0};
  std::vector<std::size_t> at(work.slots(), kNone);  // in `responses`, by slot
  std::vector<WorkerId> missing;
  std::size_t sealed = 0;
  for (const WorkerShare& share : work.shares()) {
    const SealedPart* part = work.Part(share.member.worker, first);
    if (part == nullptr) continue;
    LOCKSTEP_CHECK(part->delivered_at.value_or(now) >= part->ready_at,
                   "a part of worker {} was delivered before it was ready", share.member.worker);
    ++sealed;
    if (!part->delivered_at) missing.push_back(share.member.worker);
    at[share.member.worker.value] = responses.size();
    responses.push_back({.member = share.member,
                         .receipts = std::nullopt,
                         .delivery = part->delivered_at.value_or(now) - part->ready_at,
                         .delivered = part->delivered_at.has_value()});
  }
  for (const OwnerShare& share : work.owners().owners) {
    const WorkerId owner = share.owner.worker;
    std::vector<Duration> late = work.ReceiptDelays(owner);
    for (const WorkerId contributor : missing) {
      if (work.delivery().Lacks(owner, contributor, first)) {
        late.push_back(now - work.Part(contributor, first)->ready_at);
      }
    }
    // The others are mapped with it: received when ready, which is sooner than all of `late`.
    const std::size_t all =
        std::max(late.size(), sealed - (work.Part(owner, first) != nullptr ? 1 : 0));
    if (all == 0) continue;
    const std::size_t at_once = all - late.size();
    Duration response_time{};
    if (const std::size_t quartile = (all - 1) / 4; quartile >= at_once) {
      const auto place = late.begin() + static_cast<std::ptrdiff_t>(quartile - at_once);
      std::nth_element(late.begin(), place, late.end());
      response_time = *place;
    }
    std::size_t& response = at[owner.value];
    if (response == kNone) {
      response = responses.size();
      responses.push_back({.member = share.owner, .receipts = {}, .delivery = {}});
    }
    responses[response].receipts = response_time;
  }
  return responses;
}

}  // namespace lockstep::coordinator
