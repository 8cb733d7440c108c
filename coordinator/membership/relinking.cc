#include "coordinator/membership/relinking.h"

#include <algorithm>

#include "base/check.h"
#include "coordinator/membership/admission.h"

namespace lockstep::coordinator {
namespace {

constexpr std::uint32_t kTries = 4;
constexpr int kPauses = 8;          // of them in one liveness.timeout
constexpr int kRetryTimeouts = 2;   // from try to try where somebody waits for a link given up
constexpr int kQuietTimeouts = 10;  // a link that held for so long has all its tries again

}  // namespace

void Relinking::Break(Link* link) {
  if (link->mended_at && job_->now() - *link->mended_at >= kQuietTimeouts * job_->timeout) {
    link->tries = 0;
  }
  link->first_try.reset();
  link->broken = true;
  link->given_up = false;
  link->formation = 0;
  link->broke_at = job_->now();
  link->said_broken[0] = link->said_broken[1] = false;
  // The other end is given a moment to see it, too: while it takes the old connection for good it
  // has no use for another one.
  link->next_try = job_->now() + job_->timeout / kPauses;
}

Status Relinking::OnUnreachable(Member& from, const msg::Unreachable& message) {
  const Member* peer = job_->members.Find(message.peer);
  if (peer == nullptr || peer->id.worker == from.id.worker || from.leaving ||
      !job_->members.Broken(from.id.worker, peer->id.worker)) {
    return {};
  }
  const bool first = from.id < peer->id;
  const Pair ends = first ? Pair(from.id, peer->id) : Pair(peer->id, from.id);
  const auto [at, is_new] = links_.try_emplace(ends);
  Link& link = at->second;
  if (is_new || !link.broken) {
    Break(&link);
    job_->members.SetMending(ends.first.worker, ends.second.worker, true);
  }
  bool& said = link.said_broken[first ? 0 : 1];
  const bool is_news = !said;
  said = true;
  // If a try is under way, it has mistaken the old connection for the new one.
  if (link.formation != 0) Fail(&link);
  if (is_news && link.said_broken[0] && link.said_broken[1]) {
    link.next_try = std::min(link.next_try, job_->now());
  }
  return {};
}

Status Relinking::OnReached(Member& from, const msg::Reached& message) {
  for (auto& [ends, link] : links_) {
    if (link.formation != message.formation || link.formation == 0) continue;
    const bool first = from.id == ends.first;
    if (!first && from.id != ends.second) return {};
    const MemberId& other = first ? ends.second : ends.first;
    const auto path = std::ranges::find(message.peers, other, &PeerPath::peer);
    if (path == message.peers.end()) return {};
    if (!path->reached) {
      Fail(&link);
      return {};
    }
    job_->members.SetPath(from.id.worker, *path);
    link.said_reached[first ? 0 : 1] = true;
    if (link.said_reached[0] && link.said_reached[1]) Mend(ends, &link);
    return {};
  }
  return {};
}

void Relinking::Try(const Pair& ends, Link* link) {
  LOCKSTEP_CHECK(link->broken, "a whole link of workers {} and {} is made again", ends.first.worker,
                 ends.second.worker);
  const Member& connects = job_->members.at(ends.first.worker);
  const Member& expects = job_->members.at(ends.second.worker);
  const bool mapping = job_->start.config.exchange.mapping == "auto";
  link->formation = job_->NextFormation();
  link->said_reached[0] = link->said_reached[1] = false;
  ++link->tries;
  if (!link->first_try) link->first_try = job_->now();
  job_->Send(connects, msg::Form{link->formation,
                                 job_->transport(),
                                 {PeerInfoOf(expects, job_->transport(), mapping)},
                                 {}});
  job_->Send(expects, msg::Form{link->formation,
                                job_->transport(),
                                {},
                                {PeerInfoOf(connects, job_->transport(), mapping)}});
}

void Relinking::Fail(Link* link) {
  link->formation = 0;
  if (!link->given_up) link->next_try = job_->now() + job_->timeout / kPauses;
}

void Relinking::Mend(const Pair& ends, Link* link) {
  LOCKSTEP_CHECK(link->broken && link->said_reached[0] && link->said_reached[1],
                 "a link of workers {} and {} is whole without both", ends.first.worker,
                 ends.second.worker);
  job_->members.SetMending(ends.first.worker, ends.second.worker, false);
  job_->members.MendEdge(ends.first.worker, ends.second.worker);
  job_->Log(LogLevel::kInfo, "worker {} and worker {} reach each other again", ends.first.worker,
            ends.second.worker);
  link->broken = false;
  link->formation = 0;
  link->mended_at = job_->now();
}

void Relinking::GiveUp(const Pair& ends, Link* link) {
  LOCKSTEP_CHECK(link->broken && !link->given_up, "a link of workers {} and {} is given up twice",
                 ends.first.worker, ends.second.worker);
  job_->members.SetMending(ends.first.worker, ends.second.worker, false);
  link->given_up = true;
  link->next_try = job_->now() + kRetryTimeouts * job_->timeout;
  job_->Log(LogLevel::kWarning,
            "worker {} and worker {} cannot reach each other: they failed to connect again {}. "
            "The job avoids that link where it can; check the network between the two",
            ends.first.worker, ends.second.worker,
            link->tries == 1 ? "once" : fmt::format("{} times", link->tries));
}

void Relinking::Advance() {
  if (links_.empty() || job_->phase() != Phase::kTraining) return;
  for (auto& [ends, link] : links_) {
    if (!link.broken) continue;
    const Member* a = job_->members.Find(ends.first);
    const Member* b = job_->members.Find(ends.second);
    if (a == nullptr || b == nullptr) continue;  // OnOut follows
    // A member that is behind for this link alone comes back with it.
    const bool wanted = a->behind() || b->behind();
    if (link.given_up && (!wanted || job_->now() < link.next_try)) continue;
    // An edge also breaks when an end of it dies, or stops; then it is for liveness to decide.
    if (!Alive(link, 0, *a) || !Alive(link, 1, *b)) continue;
    if (link.given_up) {
      Try(ends, &link);
      link.next_try = job_->now() + kRetryTimeouts * job_->timeout;
      continue;
    }
    // A try that is under way has its end, too; should it succeed after all, that counts.
    const bool late = link.first_try && job_->now() - *link.first_try >= job_->timeout;
    if (late || (link.formation == 0 && link.tries >= kTries)) {
      GiveUp(ends, &link);
    } else if (link.formation == 0 && job_->now() >= link.next_try) {
      Try(ends, &link);
    }
  }
}

bool Relinking::Alive(const Link& link, int end, const Member& member) const {
  return link.said_broken[end] || member.last_heard > link.broke_at;
}

void Relinking::OnOut(const MemberId& member) {
  std::erase_if(links_, [&](const auto& entry) {
    const auto& [ends, link] = entry;
    if (ends.first != member && ends.second != member) return false;
    job_->members.SetMending(ends.first.worker, ends.second.worker, false);
    return true;
  });
}

void Relinking::CheckInvariants() const {
  const std::size_t slots = job_->members.slots();
  LOCKSTEP_CHECK(links_.size() <= slots * (slots - 1) / 2, "I7: {} links are known", links_.size());
  for (const auto& [ends, link] : links_) {
    LOCKSTEP_CHECK(ends.first < ends.second, "a link of workers {} and {}", ends.first.worker,
                   ends.second.worker);
    LOCKSTEP_CHECK(link.broken || (link.mended_at && link.formation == 0),
                   "a whole link of workers {} and {} is made again", ends.first.worker,
                   ends.second.worker);
    LOCKSTEP_CHECK(link.formation <= job_->formations(),
                   "a link of workers {} and {} is made by no order", ends.first.worker,
                   ends.second.worker);
    LOCKSTEP_CHECK(link.broke_at <= job_->now(), "a link breaks in time to come");
    LOCKSTEP_CHECK(!link.first_try || link.tries > 0, "a link was tried and no try is counted");
  }
}

}  // namespace lockstep::coordinator
