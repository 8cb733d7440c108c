#include "transport/places.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace lockstep::transport {
namespace {

// An honest newcomer's first message is on its way when it connects; for so long nobody counts as
// silent. Otherwise each newcomer would lose its place to the next one before it was heard.
constexpr Duration kMoment = std::chrono::milliseconds(100);

}  // namespace

Time Places::FreeAt(Time now) const {
  if (taken_.size() < options_.most) return now;
  Time first = kNever;
  for (const auto& [ticket, place] : taken_) {
    first = std::min(first, place.since + Undisturbed(place));
  }
  return first;
}

Places::Ticket Places::WhoGivesWay(Time now, const std::string& newcomer) const {
  std::map<std::string, std::size_t> count;
  count[newcomer] = 1;
  for (const auto& [ticket, place] : taken_) ++count[place.address];
  // Whether it may be disturbed, how many its address has, and whether it is silent. Among equals
  // the oldest goes first.
  using Rank = std::tuple<bool, std::size_t, bool>;
  std::optional<Rank> best;
  Ticket found = 0;
  for (const auto& [ticket, place] : taken_) {
    const bool silent = !place.heard && place.since + kMoment <= now;
    const Rank rank{place.since + Undisturbed(place) <= now, count[place.address], silent};
    if (best && rank <= *best) continue;
    best = rank;
    found = ticket;
  }
  return found;
}

Places::Taken Places::Take(Time now, std::string address) {
  Taken taken;
  if (taken_.size() >= options_.most) {
    taken.ended = WhoGivesWay(now, address);
    taken_.erase(*taken.ended);
  }
  taken.ticket = ++last_;
  taken_[taken.ticket] = {std::move(address), now, false};
  return taken;
}

void Places::Heard(Ticket ticket) {
  const auto found = taken_.find(ticket);
  if (found != taken_.end()) found->second.heard = true;
}

}  // namespace lockstep::transport
