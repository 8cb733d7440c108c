#include "coordinator/membership/formation.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/options.h"
#include "coordinator/membership/admission.h"

namespace lockstep::coordinator {
namespace {

constexpr std::uint32_t kNamed = 8;  // of those that are waited for, in one line

}  // namespace

Formation::Formation(Job* job)
    : job_(job),
      answered_(job->members.slots()),
      reached_(job->members.slots(), job->members.slots()),
      missed_before_(job->members.slots()) {
  if (job->start.journal.empty()) return;
  const std::vector<WorkerId>& members = job->start.journal.back().members;
  if (members.empty()) return;
  awaited_.assign(job->members.slots(), false);
  for (const WorkerId worker : members) {
    if (worker.value < awaited_.size()) awaited_[worker.value] = true;
  }
}

bool Formation::Awaits(WorkerId worker) const { return awaited_.empty() || awaited_[worker.value]; }

bool Formation::AllAreReady() const {
  if (awaited_.empty()) {
    return job_->members.Count(MemberState::kReady) >= job_->start.BeginWith();
  }
  return std::ranges::all_of(job_->members.all(), [this](const Member& member) {
    return !awaited_[member.id.worker.value] ||
           (member.connected() && member.state == MemberState::kReady);
  });
}

std::vector<Member*> Formation::Participants() const {
  std::vector<Member*> participants;
  for (Member& member : job_->members.all()) {
    if (member.connected() && member.state == MemberState::kForming)
      participants.push_back(&member);
  }
  return participants;
}

std::string Formation::Missing() const {
  if (job_->start.elastic() && awaited_.empty()) {
    return fmt::format("{} of {} workers are ready", job_->members.Count(MemberState::kReady),
                       job_->start.BeginWith());
  }
  std::string text;
  std::uint32_t count = 0;
  for (const Member& member : job_->members.all()) {
    if (member.state == MemberState::kReady || !Awaits(member.id.worker)) continue;
    if (++count > kNamed) continue;
    const char* why = member.state == MemberState::kLost ? "is not there" : "is not ready";
    text += fmt::format("{}worker {} {}", text.empty() ? "" : ", ", member.id.worker, why);
  }
  return count > kNamed ? fmt::format("{} and {} others", text, count - kNamed) : text;
}

std::string Formation::Waiting() const {
  if (job_->phase() == Phase::kGathering) {
    return fmt::format("waiting for at most {} (job.join_timeout): {}",
                       FormatDurationSeconds(job_->start.config.job.join_timeout_s), Missing());
  }
  std::string silent;
  std::uint32_t count = 0;
  for (const Member* member : Participants()) {
    if (answered_[member->id.worker.value] || ++count > kNamed) continue;
    silent += fmt::format("{}{}", silent.empty() ? "" : ", ", member->id.worker);
  }
  if (count > kNamed) silent += fmt::format(" and {} others", count - kNamed);
  return count == 0 ? std::string()
                    : fmt::format("waiting for worker {} to connect to the others", silent);
}

bool Formation::Advance() {
  // The wait begins at the first look at the clock, since the times of a resumed job began earlier.
  if (join_deadline_ == kNever) {
    join_deadline_ = job_->now() + FromSeconds(job_->start.config.job.join_timeout_s);
    begin_deadline_ = job_->start.journal.empty()
                          ? join_deadline_
                          : std::min(join_deadline_, job_->now() + job_->timeout);
  }
  if (job_->phase() == Phase::kGathering) Gather();
  return job_->phase() == Phase::kForming && !job_->failure() && ConcludeTry();
}

void Formation::Gather() {
  const std::uint32_t ready = job_->members.Count(MemberState::kReady);
  const bool late = job_->now() >= join_deadline_;
  const bool begins = late || (job_->now() >= begin_deadline_ && !AwaitsJoining(ready));
  const bool all = AllAreReady();
  if (ready == 0 || (!all && !begins)) {
    if (late && ready == 0) job_->Fail(fmt::format("no worker joined in time: {}", Missing()));
    return;
  }
  if (ready < job_->min_workers()) {
    if (!late) return;
    job_->Fail(fmt::format("{} of at least {} workers joined in time: {}", ready,
                           job_->min_workers(), Missing()));
    return;
  }
  if (!Admission::AgreeOnData(job_)) return;
  if (!all) {
    const std::string workers = awaited_.empty()
                                    ? fmt::format("of {} workers", job_->start.BeginWith())
                                    : std::string(ready == 1 ? "worker" : "workers");
    job_->Log(LogLevel::kWarning,
              "the job starts with {} {}: {} after {} ({}); a later worker joins the "
              "rounds",
              ready, workers, Missing(),
              late ? FormatDurationSeconds(job_->start.config.job.join_timeout_s)
                   : FormatDurationSeconds(Seconds(job_->timeout)),
              late ? "job.join_timeout" : "liveness.timeout");
  }
  for (Member& member : job_->members.all()) {
    if (member.connected() && member.state == MemberState::kReady) {
      job_->members.SetState(member, MemberState::kForming, job_->now());
    }
  }
  job_->phase.Enter(Phase::kForming);
  ChooseTransports();
  if (!job_->failure()) Form();
}

// A worker that has connected is on its way: it may end its batch, or read its data.
bool Formation::AwaitsJoining(std::uint32_t ready) {
  std::string joining;
  std::uint32_t count = 0;
  for (const Member& member : job_->members.all()) {
    if (!member.connected() || member.state != MemberState::kJoining || ++count > kNamed) continue;
    joining += fmt::format("{}{}", joining.empty() ? "" : ", ", member.id.worker);
  }
  if (count > kNamed) joining += fmt::format(" and {} others", count - kNamed);
  if (count > 0 && ready >= job_->min_workers() && !std::exchange(said_joining_, true)) {
    job_->Log(LogLevel::kInfo,
              "{} {} ready after {} (liveness.timeout). The job waits on for worker {}, "
              "which has connected and is not ready, for at most {} (job.join_timeout) in all",
              ready, ready == 1 ? "worker is" : "workers are",
              FormatDurationSeconds(Seconds(job_->timeout)), joining,
              FormatDurationSeconds(job_->start.config.job.join_timeout_s));
  }
  return count > 0;
}

void Formation::ChooseTransports() {
  const std::string& wanted = job_->start.config.exchange.transport;
  const auto without = [this](std::string_view name) {
    std::string text;
    for (const Member* member : Participants()) {
      if (!text.empty() || OfferOf(member->ready, name) != nullptr) continue;
      std::string why = "it does not offer it";
      for (const TransportOffer& offer : member->ready.transports) {
        if (offer.name == name && !offer.error.empty()) why = offer.error;
      }
      text = fmt::format("worker {} does not have {}: {}", member->id.worker, name, why);
    }
    return text;
  };
  if (wanted != "auto") {
    transports_ = {wanted};
    if (const std::string text = without(wanted); !text.empty()) job_->Fail(text);
    return;
  }
  transports_ = {"ucx", "tcp"};
  if (const std::string text = without("ucx"); !text.empty()) {
    // Where nobody has it nothing is lost; where some have, their RDMA is idle.
    const bool some = std::ranges::any_of(Participants(), [](const Member* member) {
      return OfferOf(member->ready, "ucx") != nullptr;
    });
    job_->Log(some ? LogLevel::kWarning : LogLevel::kInfo, "the job uses tcp, because {}", text);
    transports_ = {"tcp"};
  }
  if (const std::string text = without("tcp"); !text.empty()) {
    transports_.pop_back();
    if (transports_.empty()) job_->Fail(text);
  }
}

void Formation::Form() {
  LOCKSTEP_CHECK(!transports_.empty(), "workers connect over no transport");
  const std::vector<Member*> participants = Participants();
  formation_ = job_->NextFormation();
  deadline_ = job_->now() + 3 * job_->timeout;
  std::fill(answered_.begin(), answered_.end(), false);
  silent_ = 0;
  reached_.Clear();
  unreached_.clear();
  job_->transport.Write() = transports_.front();
  const bool mapping = job_->start.config.exchange.mapping == "auto";
  msg::Form all{formation_, job_->transport(), {}, {}};
  std::vector<ConnectionId> connections;
  for (const Member* member : participants) {
    // Every connection is looked at anew.
    job_->members.MendEdges(member->id.worker);
    all.connect_to.push_back(PeerInfoOf(*member, job_->transport(), mapping));
    connections.push_back(member->connection);
  }
  job_->Emit(SendForms{std::move(connections), std::make_shared<const msg::Form>(std::move(all))});
}

// Words of the matrix hold 64 workers each, so this costs less than asking pair by pair.
bool Formation::AllReachAll(const std::vector<Member*>& participants) const {
  std::vector<std::uint64_t> wanted(reached_.words());
  for (const Member* member : participants) {
    const std::uint32_t worker = member->id.worker.value;
    wanted[worker / 64] |= std::uint64_t{1} << (worker % 64);
  }
  return std::ranges::all_of(participants, [&](const Member* member) {
    const std::uint32_t worker = member->id.worker.value;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      std::uint64_t lacking = wanted[i] & ~reached_.Word(worker, i);
      if (i == worker / 64) lacking &= ~(std::uint64_t{1} << (worker % 64));
      if (lacking != 0) return false;
    }
    return true;
  });
}

// Looks for another one only when the last one that was found has answered.
bool Formation::AnySilent() {
  const auto all = job_->members.all();
  for (; silent_ < all.size(); ++silent_) {
    const Member& member = all[silent_];
    if (member.connected() && member.state == MemberState::kForming && !answered_[silent_]) {
      return true;
    }
  }
  return false;
}

Status Formation::OnReached(Member& from, const msg::Reached& message) {
  if (message.formation != formation_ || from.state != MemberState::kForming) return {};
  if (answered_[from.id.worker.value]) return Error{ErrorCode::kInvalid, "answered Form twice"};
  for (const PeerPath& path : message.peers) {
    const Member* peer = job_->members.Find(path.peer);
    if (peer == nullptr) continue;
    job_->members.SetPath(from.id.worker, path);
    reached_.Set(from.id.worker.value, path.peer.worker.value, path.reached);
    if (!path.reached) unreached_.try_emplace(from.id.worker, Missed{peer->id.worker, path.error});
  }
  answered_[from.id.worker.value] = true;
  return {};
}

bool Formation::ConcludeTry() {
  if (unreached_.empty() && job_->now() < deadline_ && AnySilent()) return false;
  const std::vector<Member*> participants = Participants();
  std::vector<Member*> silent;
  for (Member* member : participants) {
    if (!answered_[member->id.worker.value]) silent.push_back(member);
  }
  // With the last transport it goes on without unreached workers, which all have to name. A job
  // that goes on with its workers lives with such pairs.
  const bool last = transports_.size() == 1;
  const bool goes_on = last && !job_->start.journal.empty();
  if (!unreached_.empty() && !goes_on &&
      !(last && participants.size() > LeastOf(participants.size()))) {
    Failed(Unreached(unreached_.begin()->first));
    return false;
  }
  if (!silent.empty()) {
    if (job_->now() < deadline_) return false;
    if (!last) {
      Failed(fmt::format("worker {} did not connect over {} in time", silent.front()->id.worker,
                         job_->transport()));
    } else {
      for (Member* member : silent) job_->Evict(*member, "it did not connect in time");
    }
    return false;
  }
  if (AllReachAll(participants)) return true;
  std::vector<std::uint32_t> missed(job_->members.slots());
  const Member* first = nullptr;
  for (const Member* a : participants) {
    for (const Member* b : participants) {
      if (ReachEachOther(*a, *b)) continue;
      ++missed[a->id.worker.value];
      if (first == nullptr) first = a;
    }
  }
  if (first == nullptr || goes_on) return true;
  if (last) {
    LeaveOut(participants, std::move(missed));
  } else {
    Failed(Unreached(first->id.worker));
  }
  return false;
}

std::vector<Formation::Broken> Formation::BrokenPairs() const {
  std::vector<Broken> pairs;
  const std::vector<Member*> participants = Participants();
  if (AllReachAll(participants)) return pairs;
  for (const Member* a : participants) {
    for (const Member* b : participants) {
      if (!(a->id < b->id) || ReachEachOther(*a, *b)) continue;
      std::string why = fmt::format("no connection over {}", job_->transport());
      for (const auto& [one, other] : {std::pair(a, b), std::pair(b, a)}) {
        const auto said = unreached_.find(one->id.worker);
        if (said != unreached_.end() && said->second.peer == other->id.worker) {
          why = said->second.error;
        }
      }
      pairs.push_back({a->id, b->id, std::move(why)});
    }
  }
  return pairs;
}

// The members that go on without the others are more than half: of two workers neither trains alone
// because of a firewall.
std::size_t Formation::LeastOf(std::size_t participants) const {
  return std::max<std::size_t>(job_->min_workers(),
                               std::max(participants, most_participants_) / 2 + 1);
}

bool Formation::ReachEachOther(const Member& a, const Member& b) const {
  const std::uint32_t i = a.id.worker.value;
  const std::uint32_t k = b.id.worker.value;
  return i == k || (reached_.Test(i, k) && reached_.Test(k, i));
}

// For a pair that does not reach each other nobody else can tell which end is at fault: the one
// that misses more goes. A worker that was in such a pair before is the likelier cause. Else one
// worker could get all others evicted, one with each try.
void Formation::LeaveOut(std::vector<Member*> participants, std::vector<std::uint32_t> missed) {
  LOCKSTEP_CHECK(transports_.size() == 1, "workers are left out, and {} transports are to be tried",
                 transports_.size());
  std::vector<std::pair<Member*, std::uint32_t>> out;
  const std::vector<std::uint32_t> of_all = missed;
  const std::size_t others = participants.size() - 1;
  const std::size_t least = LeastOf(participants.size());
  most_participants_ = std::max(most_participants_, participants.size());
  for (;;) {
    const auto worst = std::ranges::max_element(participants, {}, [&](const Member* member) {
      const std::uint32_t worker = member->id.worker.value;
      return std::tuple(missed[worker], missed_before_[worker], worker);
    });
    Member* member = *worst;
    const std::uint32_t worker = member->id.worker.value;
    if (missed[worker] == 0) break;
    if (participants.size() <= least) return job_->Fail(Unreached(member->id.worker));
    out.emplace_back(member, of_all[worker]);
    participants.erase(worst);
    for (const Member* other : participants) {
      if (!ReachEachOther(*other, *member)) --missed[other->id.worker.value];
    }
  }
  LOCKSTEP_CHECK(!out.empty() && participants.size() >= least,
                 "{} workers are left out, and {} are left of at least {}", out.size(),
                 participants.size(), least);
  for (std::size_t i = 0; i < of_all.size(); ++i) missed_before_[i] += of_all[i];
  for (const auto& [member, count] : out) {
    job_->Evict(*member, fmt::format("it and {} of {} others do not reach each other: {}", count,
                                     others, Unreached(member->id.worker)));
  }
}

// Why, in the words of one end; best in its own.
std::string Formation::Unreached(WorkerId worker) const {
  auto said = unreached_.find(worker);
  if (said == unreached_.end()) {
    said = std::ranges::find_if(unreached_,
                                [&](const auto& entry) { return entry.second.peer == worker; });
  }
  if (said == unreached_.end()) {
    std::pair<WorkerId, WorkerId> way{worker, worker};
    for (const Member* other : Participants()) {
      const WorkerId peer = other->id.worker;
      if (!reached_.Test(peer.value, worker.value) && peer != worker) way = {peer, worker};
      if (!reached_.Test(worker.value, peer.value) && peer != worker) way = {worker, peer};
    }
    return fmt::format("worker {} did not report its path to worker {} over {}", way.first,
                       way.second, job_->transport());
  }
  return fmt::format("worker {} cannot reach worker {} over {}: {}", said->first, said->second.peer,
                     job_->transport(), said->second.error);
}

void Formation::Failed(const std::string& reason) {
  LOCKSTEP_CHECK(!transports_.empty(), "a try has failed that was not made: {}", reason);
  transports_.erase(transports_.begin());
  if (transports_.empty()) return job_->Fail(reason);
  job_->Log(LogLevel::kWarning, "the job uses {}, because {}", transports_.front(), reason);
  Form();
}

// The remaining members gather again, and connect again.
void Formation::OnOut(const MemberId&) {
  if (job_->phase() != Phase::kForming) return;
  job_->phase.Enter(Phase::kGathering);
  for (Member* member : Participants()) {
    job_->members.SetState(*member, MemberState::kReady, job_->now());
  }
}

bool Formation::TooFewCame() const {
  const std::uint32_t ready = job_->members.Count(MemberState::kReady);
  return job_->phase() == Phase::kGathering && join_deadline_ != kNever &&
         job_->now() >= begin_deadline_ && ready < job_->min_workers() &&
         (job_->now() >= join_deadline_ || job_->members.Count(MemberState::kJoining) == 0);
}

Time Formation::NextDeadline() const {
  if (job_->phase() == Phase::kGathering) {
    return job_->now() < begin_deadline_ ? begin_deadline_ : join_deadline_;
  }
  return job_->phase() == Phase::kForming ? deadline_ : kNever;
}

void Formation::CheckInvariants() const {
  LOCKSTEP_CHECK(formation_ <= job_->formations(), "a try that has no number");
  if (job_->phase() == Phase::kForming && !job_->failure()) {
    LOCKSTEP_CHECK(!transports_.empty() && job_->transport() == transports_.front(),
                   "the job forms over {}, which is not tried", job_->transport());
    LOCKSTEP_CHECK(job_->agreed().settled, "the job forms before all agree");
  }
  for (const Member& member : job_->members.all()) {
    LOCKSTEP_CHECK(job_->phase() != Phase::kGathering || !member.connected() ||
                       member.state == MemberState::kJoining || member.state == MemberState::kReady,
                   "worker {} is {} while the job gathers", member.id.worker, Name(member.state));
  }
}

}  // namespace lockstep::coordinator
