#include "coordinator/membership/joining.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/check.h"
#include "base/sometimes.h"
#include "coordinator/membership/admission.h"

namespace lockstep::coordinator {
namespace {

constexpr int kFormTimeouts = 3;  // of liveness.timeout, to connect to all
constexpr std::uint32_t kCopyTries = 2;

}  // namespace

void Joining::Form(Member& member) {
  if (OfferOf(member.ready, job_->transport()) == nullptr) {
    job_->Evict(
        member,
        fmt::format("the job runs over {}, which this worker does not have", job_->transport()),
        Leaving::Kind::kRefused);
    return;
  }
  LOCKSTEP_CHECK(!newcomers_.contains(member.id), "worker {} comes twice", member.id.worker);
  Newcomer newcomer;
  newcomer.formation = job_->NextFormation();
  newcomer.deadline = job_->now() + kFormTimeouts * job_->timeout;
  const bool mapping = job_->start.config.exchange.mapping == "auto";
  std::vector<PeerInfo> connect_to;
  std::vector<MemberId> peers;
  for (const Member& peer : job_->members.all()) {
    const bool there =
        peer.connected() && (peer.exchanging() || peer.behind() || newcomers_.contains(peer.id));
    if (!there) continue;
    connect_to.push_back(PeerInfoOf(peer, job_->transport(), mapping));
    peers.push_back(peer.id);
    newcomer.peers[peer.id] = 0;
  }
  job_->Send(member, msg::Form{newcomer.formation, job_->transport(), std::move(connect_to), {}});
  job_->Send(peers, msg::Form{newcomer.formation,
                              job_->transport(),
                              {},
                              {PeerInfoOf(member, job_->transport(), mapping)}});
  job_->members.SetState(member, MemberState::kForming, job_->now());
  newcomers_[member.id] = std::move(newcomer);
}

void Joining::TakeIn(const Member& member) {
  Newcomer newcomer;
  newcomer.formation = job_->formations();
  newcomer.deadline = job_->now() + kFormTimeouts * job_->timeout;
  for (const Member& peer : job_->members.all()) {
    if (peer.connected() && peer.exchanging()) newcomer.peers[peer.id] = kBoth;
  }
  newcomers_[member.id] = std::move(newcomer);
}

Status Joining::OnReached(Member& from, const msg::Reached& message) {
  if (message.formation > job_->formations()) {
    return Error{ErrorCode::kInvalid, "answers a Form that was not sent"};
  }
  for (auto& [id, newcomer] : newcomers_) {
    if (newcomer.formation != message.formation) continue;
    for (const PeerPath& path : message.peers) {
      const bool self = from.id == id;
      const MemberId other = self ? path.peer : from.id;
      const auto peer = newcomer.peers.find(other);
      if (peer == newcomer.peers.end() || (!self && path.peer != id)) continue;
      job_->members.SetPath(from.id.worker, path);
      if (path.reached) {
        peer->second |= self ? kSelfSays : kPeerSays;
        continue;
      }
      Member* member = job_->members.Find(id);
      if (member == nullptr) continue;
      const Member* unreached = self ? job_->members.Find(other) : nullptr;
      if (unreached != nullptr) {
        newcomer.unreached[other] = {job_->Ping(*unreached), path.error};
      } else if (!self) {
        EvictUnreached(*member, other.worker, path.error);
      }
    }
  }
  return {};
}

void Joining::EvictUnreached(Member& newcomer, WorkerId peer, const std::string& error) {
  job_->Evict(newcomer, fmt::format("worker {} and worker {} do not reach each other over {}: {}",
                                    newcomer.id.worker, peer, job_->transport(), error));
}

bool Joining::JudgeUnreached(Member& member, const Newcomer& newcomer) {
  for (const auto& [id, unreached] : newcomer.unreached) {
    const Member* peer = job_->members.Find(id);
    if (peer == nullptr || peer->answered_ping < unreached.ping) continue;
    Sometimes<"joining: a newcomer does not reach a member">();
    EvictUnreached(member, id.worker, unreached.error);
    return true;
  }
  return false;
}

bool Joining::Connected(const Newcomer& newcomer) const {
  return std::all_of(newcomer.peers.begin(), newcomer.peers.end(),
                     [](const auto& peer) { return peer.second == kBoth; });
}

const MemberId* Joining::LostAgain(const MemberId& id, const Newcomer& newcomer) const {
  if (!job_->members.AnyBroken()) return nullptr;
  for (const auto& [peer, said] : newcomer.peers) {
    if (job_->members.Broken(id.worker, peer.worker)) return &peer;
  }
  // One that was let in before it, when a coordinator took over.
  for (const Member& other : job_->members.all()) {
    const bool in = other.connected() && other.exchanging() && other.id != id;
    if (in && job_->members.Broken(id.worker, other.id.worker)) return &other.id;
  }
  return nullptr;
}

void Joining::MakeLive(Member& member, RoundId next) {
  LOCKSTEP_CHECK(next <= rounds_->first_uncommitted(),
                 "I1: worker {} becomes live before round {}, and {} is not committed",
                 member.id.worker, next, rounds_->first_uncommitted());
  member.next = next;
  member.last_progress = job_->now();
  job_->members.SetState(member, MemberState::kLive, job_->now());
  rounds_->OnLevel();
}

bool Joining::LetIn(Member& member, Newcomer& newcomer) {
  LOCKSTEP_CHECK(member.state == MemberState::kForming, "worker {} is let in, and is {}",
                 member.id.worker, Name(member.state));
  const std::optional<RoundId> at = rounds_->JoinAt();
  if (!at) return false;
  if (*at == first_round_ && source_ != StateSource::kHeld) {
    // It would begin with parameters of its own; from the next round on it gets the job's.
    if (!SameInitialParameters(*job_, member.ready)) {
      job_->Evict(member, InitialParametersMismatch(*job_, member.id.worker, member.ready),
                  Leaving::Kind::kRefused);
      return false;
    }
    if (source_ == StateSource::kGiven && !initial_broadcast_->HasAll(member.id)) {
      initial_broadcast_->Want(member);
      return false;
    }
    if (source_ == StateSource::kCheckpoint && !streams_->HasAll(member.id)) {
      if (!newcomer.streaming) streams_->Begin(member);
      newcomer.streaming = true;
      return false;
    }
    job_->Send(member,
               msg::Start{source_, rounds_->JoinPlan(), job_->closed().totals.samples_counted});
    MakeLive(member, *at);
  } else {
    if (newcomer.streaming && !streams_->HasAll(member.id)) return false;
    if (!Copy(member, std::nullopt)) return false;
  }
  job_->Log(LogLevel::kInfo, "worker {} is in the job from round {} on", member.id.worker, *at);
  return true;
}

std::vector<Member*> Joining::ChooseDonors(const Member& member, RoundId at,
                                           const std::optional<MemberId>& not_from) {
  using Cost = std::tuple<bool, bool, std::uint32_t, Duration, MemberId>;
  std::vector<std::pair<Cost, Member*>> donors;
  const auto cost = [&](const Member& donor) {
    std::uint32_t busy = 0;
    for (const auto& [id, copying] : copying_) busy += std::ranges::count(copying.donors, donor.id);
    const bool lately = donor.contributed && donor.contributed->value + 3 >= at.value;
    return Cost(donor.id == not_from, !lately, busy, donor.unit_times.mean, donor.id);
  };
  for (Member& donor : job_->members.all()) {
    if (!donor.live() || donor.id == member.id) continue;
    // It must hold all rounds whose commits the other will not get. With replicas, a member that
    // comes back takes the parameters from all of them.
    if (!rounds_->replicas().any() && donor.next < at) continue;
    if (job_->members.Broken(donor.id.worker, member.id.worker)) continue;
    donors.emplace_back(cost(donor), &donor);
  }
  const std::size_t most = std::min(donors.size(), msg::kMostDonors);
  std::ranges::partial_sort(donors, donors.begin() + static_cast<std::ptrdiff_t>(most));
  std::vector<Member*> chosen;
  for (std::size_t i = 0; i < most; ++i) {
    // One that stops answers nothing and holds the copy up: only those that were fast lately help.
    const auto& [last, slow, busy, mean, id] = donors[i].first;
    if (i == 0 || (!last && !slow)) chosen.push_back(donors[i].second);
  }
  return chosen;
}

bool Joining::Copy(Member& member, const std::optional<MemberId>& not_from) {
  // Each needs what each other one holds.
  if (rounds_->replicas().any() && job_->members.BrokenEdges(member.id.worker) > 0) return false;
  const std::optional<RoundId> at = rounds_->JoinAt();
  if (!at) return false;
  if (*at == RoundId(0)) {
    // What is before the first round is nobody's to copy: it waits for the first commit.
    Sometimes<"joining: one that is behind waits for the first commit">();
    return false;
  }
  std::vector<Member*> donors = ChooseDonors(member, *at, not_from);
  if (donors.empty()) return false;
  // After a copy that failed one alone has to do. With replicas nobody is asked.
  if (not_from || rounds_->replicas().any()) donors.erase(donors.begin() + 1, donors.end());
  Copying& copying = copying_[member.id];
  copying.donors.clear();
  std::string words;
  for (const Member* donor : donors) {
    LOCKSTEP_CHECK(donor->live() && donor->id != member.id, "worker {} copies from worker {}",
                   member.id.worker, donor->id.worker);
    LOCKSTEP_CHECK(!job_->members.Broken(donor->id.worker, member.id.worker),
                   "worker {} copies from one that it does not reach", member.id.worker);
    copying.donors.push_back(donor->id);
    words += fmt::format("{}{}", words.empty() ? "" : ", ", donor->id.worker);
  }
  copying.open_round = *at;
  copying.since = job_->now();
  copying.order = member.copy_order = job_->NextOrder();
  copying.values = 0;
  copying.failed = false;
  ++copying.tries;
  if (member.state != MemberState::kCatchingUp) {
    job_->members.SetState(member, MemberState::kCatchingUp, job_->now());
  }
  // The plan of the open round goes ahead: units of it may be assigned as soon as it is level. The
  // units that the member had in it went to others.
  if (!rounds_->done()) {
    Plan plan = rounds_->JoinPlan();
    std::erase_if(plan.assignments, [&](const Assignment& a) { return a.member == member.id; });
    job_->Send(member, msg::Start{StateSource::kPeers, std::move(plan),
                                  job_->closed().totals.samples_counted});
  }
  job_->Send(member, msg::CatchUp{copying.donors.front(),
                                  *at,
                                  copying.order,
                                  {copying.donors.begin() + 1, copying.donors.end()}});
  job_->Log(LogLevel::kInfo, "worker {} catches up from worker{} {}", member.id.worker,
            donors.size() == 1 ? "" : "s", words);
  return true;
}

bool Joining::MayBecomeLevel() const {
  return std::ranges::any_of(copying_, [](const auto& entry) { return !entry.second.failed; });
}

// A member that is behind only for its silence has whole parameters, until it copies others over
// them. The doubt is only whether they are the same as the others'. With nobody live, no counting
// member can have applied another attempt of the round. So they are the common ones when they
// contain the committed attempt (I1). Its units of the open round went to others.
bool Joining::ReadmitApplied() {
  const CommittedRound* committed = rounds_->committed();
  if (committed == nullptr || committed->closed()) return false;
  LOCKSTEP_CHECK(job_->members.CountLive() == 0,
                 "I1: a member that is behind is readmitted while others are live");
  const std::pair truth(committed->round(), committed->commit().attempt);
  bool any = false;
  for (Member& member : job_->members.all()) {
    if (!member.connected() || member.state != MemberState::kBehindApplied) continue;
    if (member.applied_behind != truth) continue;
    job_->Log(LogLevel::kWarning, "worker {} is readmitted: it was behind and has applied round {}",
              member.id.worker, truth.first);
    Sometimes<"readmitted: with the committed round, when nobody was live">();
    MakeLive(member, truth.first.Next());
    any = true;
  }
  if (any) rounds_->OnReadmitted();
  return any;
}

// It is behind for its silence alone, and all closed rounds are in its parameters; of the committed
// one, by what it has said so far, no attempt.
bool Joining::LacksCommitted(const Member& member, RoundId committed) {
  return member.connected() && member.behind() && member.state != MemberState::kBehindInDoubt &&
         member.state != MemberState::kBehindApplied && member.next == committed;
}

// Its answer comes after its reports of the attempts that it knew. Earlier attempts were covered by
// the same promise when they were given up.
void Joining::AskBehind() {
  LOCKSTEP_CHECK(job_->members.CountLive() == 0, "I1: a member behind is asked before live ones");
  const CommittedRound* committed = rounds_->committed();
  if (committed == nullptr || committed->closed()) return;
  for (Member& member : job_->members.all()) {
    if (!LacksCommitted(member, committed->round()) || member.state != MemberState::kBehind)
      continue;
    const bool sent = member.commit_sent && member.commit_sent->first == committed->round();
    job_->members.SetState(member, MemberState::kBehindAsked, job_->now());
    member.fence_order = job_->NextOrder();
    job_->Send(member,
               msg::FenceAttempt{job_->start.term, committed->round(),
                                 sent ? member.commit_sent->second : committed->commit().attempt,
                                 member.fence_order});
  }
}

// No live member has the committed round, and those with all rounds before it have promised not to
// apply the attempt that they know. So the round can be given up and computed again (I1).
bool Joining::ReadmitDenied() {
  const CommittedRound* committed = rounds_->committed();
  if (committed == nullptr || committed->closed()) return false;
  LOCKSTEP_CHECK(job_->members.CountLive() == 0,
                 "I1: a member that is behind is readmitted while others are live");
  const RoundId round = committed->round();
  bool any = false;
  for (Member& member : job_->members.all()) {
    if (!LacksCommitted(member, round) || member.state != MemberState::kBehindDenied) continue;
    job_->Log(LogLevel::kWarning, "worker {} is readmitted: it has the parameters before round {}",
              member.id.worker, round);
    Sometimes<"readmitted: without the committed round, when nobody was live">();
    MakeLive(member, round);
    any = true;
  }
  if (any) rounds_->GiveUpCommitted("nobody is left who has it");
  return any;
}

bool Joining::MayReadmit() const {
  const CommittedRound* committed = rounds_->committed();
  if (committed == nullptr || committed->closed()) return false;
  return std::ranges::any_of(job_->members.all(), [&](const Member& member) {
    if (!member.connected() || !member.behind()) return false;
    return member.state != MemberState::kBehindInDoubt &&
           member.state != MemberState::kBehindDenied &&
           (std::ranges::binary_search(committed->commit().members, member.id) ||
            LacksCommitted(member, committed->round()));
  });
}

bool Joining::IsCutOff(const Member& member) const {
  bool any = false;
  for (const Member& other : job_->members.all()) {
    if (!other.live() || other.id == member.id) continue;
    if (!job_->members.Broken(other.id.worker, member.id.worker) ||
        job_->members.Mending(other.id.worker, member.id.worker)) {
      return false;
    }
    any = true;
  }
  return any;
}

Status Joining::OnBehind(Member& from, const msg::Behind& message) {
  if (message.order > job_->orders()) {
    return Error{ErrorCode::kInvalid, "is behind after an order that was not given"};
  }
  const bool before_that = message.order != from.copy_order;  // it was told to catch up since
  switch (from.state) {
    case MemberState::kLive:
      if (before_that) return {};
      job_->Log(LogLevel::kWarning, "worker {} is behind: {}", from.id.worker, message.reason);
      job_->PutInDoubt(from, message.reason);
      return {};
    case MemberState::kCatchingUp: {
      if (before_that) return {};
      // The copy failed; another donor is tried, as when it takes too long.
      const auto copying = copying_.find(from.id);
      if (copying == copying_.end()) return {};
      copying->second.since = job_->now() - job_->bounds.Copy();
      copying->second.failed = true;
      return {};
    }
    case MemberState::kBehind:
    case MemberState::kBehindAsked:
    case MemberState::kBehindDenied:
    case MemberState::kBehindApplied:
    case MemberState::kBehindInDoubt:
      if (!before_that) job_->members.SetState(from, MemberState::kBehindInDoubt, job_->now());
      return {};
    default:
      return Error{ErrorCode::kInvalid, "is behind before it has begun"};
  }
}

// A large copy over a slow link gets the time that it takes, as long as it makes progress.
Status Joining::OnCopied(Member& from, const msg::Copied& message) {
  const auto copying = copying_.find(from.id);
  if (copying == copying_.end() || message.order != copying->second.order ||
      message.values <= copying->second.values) {
    return {};
  }
  copying->second.values = message.values;
  copying->second.since = job_->now();
  return {};
}

Status Joining::OnLevel(Member& from, const msg::Level& message) {
  if (from.state != MemberState::kCatchingUp) {
    if (from.state == MemberState::kLive || from.behind()) return {};
    return Error{ErrorCode::kInvalid, "is level before it has begun"};
  }
  const auto copying = copying_.find(from.id);
  // It was told to begin anew since.
  if (copying != copying_.end() && message.order < copying->second.order) return {};
  const RoundId next = message.round.Next();
  if (copying == copying_.end() || message.order != copying->second.order ||
      next < copying->second.open_round || next > rounds_->never_committed()) {
    return Error{ErrorCode::kInvalid, fmt::format("cannot be level at round {}", message.round)};
  }
  LOCKSTEP_CHECK(copying->second.order == from.copy_order, "worker {} copies by two orders",
                 from.id.worker);
  copying_.erase(copying);
  if (next > rounds_->first_uncommitted()) {
    job_->PutInDoubt(from, fmt::format("round {}, which it has, is open again", message.round));
    return {};
  }
  MakeLive(from, next);
  job_->Log(LogLevel::kInfo, "worker {} is level at round {}", from.id.worker, message.round);
  return {};
}

void Joining::OnUnreachable(Member& from, const MemberId& peer) {
  const auto copying = copying_.find(from.id);
  if (copying == copying_.end()) return;
  const std::vector<MemberId>& donors = copying->second.donors;
  if (std::ranges::find(donors, peer) == donors.end()) return;
  // It goes on with those that it reaches. What this one has given stays, so it stays a donor: its
  // state may yet become doubtful.
  const bool reaches_another = std::ranges::any_of(donors, [&](const MemberId& donor) {
    return donor != peer && !job_->members.Broken(donor.worker, from.id.worker);
  });
  if (reaches_another) return;
  if (Copy(from, peer)) --copying->second.tries;  // the loss of a donor is not its fault
}

void Joining::OnBack(const MemberId& member) {
  const auto copying = copying_.find(member);
  if (copying != copying_.end()) copying->second.since = job_->now();
}

void Joining::OnOut(const MemberId& member) {
  newcomers_.erase(member);
  copying_.erase(member);
  for (auto& [id, newcomer] : newcomers_) {
    newcomer.peers.erase(member);
    newcomer.unreached.erase(member);
  }
}

bool Joining::CheckNewcomers() {
  std::vector<MemberId> in;
  for (auto& [id, newcomer] : newcomers_) {
    Member* member = job_->members.Find(id);
    if (member == nullptr) continue;
    if (const MemberId* lost = LostAgain(id, newcomer)) {
      if (job_->members.Mending(id.worker, lost->worker)) continue;
      // An edge that cannot be mended stays broken as long as this member is here. It has to
      // connect again, unless the other one goes.
      if (job_->HeardSinceEdgeBroke(id.worker) && job_->HeardSinceEdgeBroke(lost->worker)) {
        Sometimes<"joining: an edge of a newcomer breaks again">();
        job_->Evict(*member,
                    fmt::format("it and worker {} cannot reach each other any more", lost->worker));
      }
    } else if (JudgeUnreached(*member, newcomer)) {
      continue;
    } else if (Connected(newcomer)) {
      if (LetIn(*member, newcomer)) in.push_back(id);
    } else if (job_->now() >= newcomer.deadline) {
      const auto silent = std::find_if(newcomer.peers.begin(), newcomer.peers.end(),
                                       [](const auto& peer) { return peer.second != kBoth; });
      Sometimes<"joining: a newcomer does not connect in time">();
      job_->Evict(*member,
                  fmt::format("it and worker {} did not connect in time", silent->first.worker));
    }
  }
  for (const MemberId& id : in) newcomers_.erase(id);
  return !in.empty();
}

bool Joining::HasDonor(Copying& copying) {
  for (auto at = copying.donors.begin(); at != copying.donors.end();) {
    const Member* donor = job_->members.Find(*at);
    if (donor != nullptr && donor->connected() && !donor->live()) return false;
    if (donor != nullptr && donor->live()) {
      ++at;
      continue;
    }
    Sometimes<"copying: one of its donors is lost">();
    at = copying.donors.erase(at);
  }
  return !copying.donors.empty();
}

void Joining::CheckCopying() {
  std::erase_if(copying_, [this](const auto& entry) {  // it was put behind meanwhile
    const Member* member = job_->members.Find(entry.first);
    return member != nullptr && member->behind();
  });
  struct Again {
    MemberId id;
    bool lost;  // all donors, or one's state is doubtful
    std::optional<MemberId> donor;
  };
  std::vector<Again> again;
  for (auto& [id, copying] : copying_) {
    const Member* member = job_->members.Find(id);
    if (member != nullptr && member->away()) continue;  // it begins when it is back
    const std::optional first =
        copying.donors.empty() ? std::nullopt : std::optional(copying.donors.front());
    const bool lost = !HasDonor(copying);
    if (lost || job_->now() >= copying.since + job_->bounds.Copy())
      again.push_back({id, lost, first});
  }
  for (const auto& [id, lost, donor] : again) {
    Member* member = job_->members.Find(id);
    if (member == nullptr) continue;
    const Copying& copying = copying_[id];
    if (lost) {
      Sometimes<"copying: the donor is lost">();
    } else {
      Sometimes<"copying: it is late">();
    }
    if (!lost && copying.tries >= kCopyTries) {
      Sometimes<"copying: given up">();
      job_->Evict(*member, "it could not copy the state in time");
    } else if (Copy(*member, donor) && lost) {
      --copying_[id].tries;  // the loss of a donor is not its fault
    }
  }
}

bool Joining::Advance() {
  const bool training = job_->phase() == Phase::kTraining;
  if ((!training && job_->phase() != Phase::kEnding) || !rounds_->begun()) return false;
  if (training && job_->members.Count(MemberState::kReady) > 0) {
    for (Member& member : job_->members.all()) {
      if (member.connected() && member.state == MemberState::kReady) Form(member);
    }
  }
  const bool joined = training && !newcomers_.empty() && CheckNewcomers();
  if (job_->members.CountBehind() > 0) {
    for (Member& member : job_->members.all()) {
      const bool heard = member.last_heard >= member.since;
      if (!member.connected() || !member.behind() || !heard) continue;
      if (member.away()) continue;  // it may need its parameters as they are
      // Its broken edges stay broken as long as it is here: it has to connect again.
      if (!Copy(member, std::nullopt) && IsCutOff(member)) {
        job_->Evict(member, "it reaches nobody that has the parameters");
      }
    }
  }
  if (!copying_.empty()) CheckCopying();
  return joined;
}

void Joining::CheckInvariants() const {
  LOCKSTEP_CHECK(newcomers_.size() <= job_->members.slots(), "I7: {} newcomers", newcomers_.size());
  LOCKSTEP_CHECK(copying_.size() <= job_->members.slots(), "I7: {} copy", copying_.size());
  for (const auto& [id, newcomer] : newcomers_) {
    const Member* member = job_->members.Find(id);
    LOCKSTEP_CHECK(member == nullptr || member->state == MemberState::kForming,
                   "worker {} is new, and is {}", id.worker, Name(member->state));
    LOCKSTEP_CHECK(newcomer.formation > 0 && newcomer.formation <= job_->formations(),
                   "worker {} answers a Form that has no number", id.worker);
    LOCKSTEP_CHECK(!newcomer.peers.contains(id), "worker {} is to reach itself", id.worker);
    LOCKSTEP_CHECK(newcomer.peers.size() < job_->members.slots(), "I7: worker {} has {} peers",
                   id.worker, newcomer.peers.size());
  }
  for (const auto& [id, copying] : copying_) {
    const Member* member = job_->members.Find(id);
    LOCKSTEP_CHECK(
        member == nullptr || member->state == MemberState::kCatchingUp || member->behind(),
        "worker {} copies, and is {}", id.worker, Name(member->state));
    LOCKSTEP_CHECK(member == nullptr || copying.order == member->copy_order,
                   "worker {} copies by an order of before", id.worker);
    LOCKSTEP_CHECK(std::ranges::find(copying.donors, id) == copying.donors.end(),
                   "worker {} copies from itself", id.worker);
    LOCKSTEP_CHECK(copying.tries <= kCopyTries, "I6: worker {} copies for the {}th time", id.worker,
                   copying.tries);
    LOCKSTEP_CHECK(copying.since <= job_->now(), "worker {} copies in time to come", id.worker);
  }
}

}  // namespace lockstep::coordinator
