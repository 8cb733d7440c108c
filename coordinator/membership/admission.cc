#include "coordinator/membership/admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/ini.h"

namespace lockstep::coordinator {

const TransportOffer* OfferOf(const msg::Ready& ready, std::string_view transport) {
  for (const TransportOffer& offer : ready.transports) {
    if (offer.name == transport && !offer.address.empty()) return &offer;
  }
  return nullptr;
}

PeerInfo PeerInfoOf(const Member& member, const std::string& transport, bool mapping) {
  const TransportOffer* offer = OfferOf(member.ready, transport);
  return {member.id, offer == nullptr ? std::string() : offer->address,
          mapping ? member.ready.mapping_address : std::string(), member.hello.host_id};
}

namespace {

bool BeginAlike(const Job& job, const msg::Ready& ready, bool own_parameters,
                const std::string& initial_digest) {
  if (job.resumed()) return true;
  return ready.own_parameters == own_parameters &&
         (own_parameters || ready.initial_digest == initial_digest);
}

std::vector<std::string> PartsOf(const std::string& digest) {
  static constexpr std::string_view kBetween = "; ";
  std::vector<std::string> parts;
  std::size_t at = 0;
  for (;;) {
    const std::size_t end = digest.find(kBetween, at);
    parts.push_back(digest.substr(at, end - at));
    if (end == std::string::npos) return parts;
    at = end + kBetween.size();
  }
}

// The parts that the other does not have, for people.
std::string Less(const std::vector<std::string>& parts, const std::vector<std::string>& others) {
  std::string own;
  for (const std::string& part : parts) {
    if (std::ranges::find(others, part) != others.end()) continue;
    if (!own.empty()) own += ", ";
    own += part;
  }
  if (own.empty()) own = "nothing of the kind";
  return own;
}

// The data are the first part; what a program wants to be the same beside them comes behind.
std::string OtherData(const Job& job, WorkerId worker, const msg::Ready& ready) {
  const std::vector<std::string> its = PartsOf(ready.dataset_digest);
  const std::vector<std::string> ours = PartsOf(job.agreed().dataset_digest);
  if (its.front() != ours.front()) {
    return fmt::format("the data of worker {} have the digest {}, those of {} have {}", worker,
                       its.front(), job.agreed().by, ours.front());
  }
  return fmt::format("worker {} has {}, {} has {}", worker, Less(its, ours), job.agreed().by,
                     Less(ours, its));
}

// A resumed job whose epochs leave out what is less than a batch: perhaps with another batch than
// it had, or only since then.
std::string OfWholeBatches(const Job& job, std::uint64_t train_samples) {
  const std::uint64_t batch = job.start.config.job.global_batch;
  if (!job.resumed() || train_samples == job.agreed().train_samples || train_samples % batch != 0 ||
      job.agreed().train_samples % batch == 0) {
    return {};
  }
  return fmt::format(
      "; with drop_last an epoch has only whole batches of job.global_batch = {}: has that or "
      "drop_last changed since the checkpoint?",
      batch);
}

std::string Disagreement(const Job& job, WorkerId worker, const msg::Ready& ready) {
  if (ready.dataset_digest != job.agreed().dataset_digest) return OtherData(job, worker, ready);
  const auto differs = [&](std::string_view what, std::uint64_t its, std::uint64_t ours) {
    return its == ours ? std::string()
                       : fmt::format("worker {} has {} {}, {} has {}", worker, its, what,
                                     job.agreed().by, ours);
  };
  for (const std::string& text :
       {differs("training samples", ready.train_samples, job.agreed().train_samples) +
            OfWholeBatches(job, ready.train_samples),
        differs("test samples", ready.test_samples, job.agreed().test_samples),
        differs("parameters", ready.parameter_count, job.agreed().parameter_count),
        differs("tensors of optimizer state", ready.state_tensors, job.agreed().state_tensors)}) {
    if (!text.empty()) return text;
  }
  for (std::size_t i = 0; i < std::max(ready.tensors.size(), job.agreed().tensors.size()); ++i) {
    if (i < ready.tensors.size() && i < job.agreed().tensors.size() &&
        ready.tensors[i] == job.agreed().tensors[i]) {
      continue;
    }
    const auto name = [i](const std::vector<TensorInfo>& tensors) {
      if (i >= tensors.size()) return std::string("no tensor");
      return tensors[i].name + " " + InWords(tensors[i].shape);
    };
    return fmt::format("worker {} has {} where {} has {}", worker, name(ready.tensors),
                       job.agreed().by, name(job.agreed().tensors));
  }
  const bool begins = job.phase() == Phase::kGathering || job.phase() == Phase::kForming;
  if (begins && !SameInitialParameters(job, ready)) {
    return InitialParametersMismatch(job, worker, ready);
  }
  if (ready.state_names != job.agreed().state_names) {
    return fmt::format("worker {} has the optimizer state {}, {} has {}", worker,
                       InWords(ready.state_names), job.agreed().by,
                       InWords(job.agreed().state_names));
  }
  return {};
}

// The properties that all workers of a job share.
bool SameData(const msg::Ready& a, const msg::Ready& b) {
  return a.dataset_digest == b.dataset_digest && a.train_samples == b.train_samples &&
         a.test_samples == b.test_samples && a.parameter_count == b.parameter_count &&
         a.state_tensors == b.state_tensors && a.tensors == b.tensors &&
         a.state_names == b.state_names;
}

}  // namespace

bool SameInitialParameters(const Job& job, const msg::Ready& ready) {
  return BeginAlike(job, ready, job.agreed().own_parameters, job.agreed().initial_digest);
}

std::string InitialParametersMismatch(const Job& job, WorkerId worker, const msg::Ready& ready) {
  if (ready.own_parameters != job.agreed().own_parameters) {
    const auto which = [](bool own) { return own ? "of its own" : "common to all"; };
    return fmt::format("worker {} comes with parameters {}, {} with parameters {}", worker,
                       which(ready.own_parameters), job.agreed().by,
                       which(job.agreed().own_parameters));
  }
  return fmt::format(
      "worker {} begins with other parameters than {}: use one seed or one file for all workers",
      worker, job.agreed().by);
}

bool Admission::AgreeOnData(Job* job) {
  if (job->agreed().settled) return true;
  std::vector<std::vector<Member*>> camps;  // each of one mind
  std::size_t ready = 0;
  for (Member& member : job->members.all()) {
    if (!member.connected() || member.state != MemberState::kReady) continue;
    ++ready;
    const auto same = std::ranges::find_if(camps, [&](const std::vector<Member*>& camp) {
      return SameData(camp.front()->ready, member.ready) &&
             BeginAlike(*job, member.ready, camp.front()->ready.own_parameters,
                        camp.front()->ready.initial_digest);
    });
    if (same == camps.end()) {
      camps.push_back({&member});
    } else {
      same->push_back(&member);
    }
  }
  LOCKSTEP_CHECK(!camps.empty(), "nobody is ready, and all are to agree");
  const auto largest = std::ranges::max_element(
      camps, {}, [](const std::vector<Member*>& camp) { return camp.size(); });
  const msg::Ready& theirs = largest->front()->ready;
  Agreement& agreed = job->agreed.Write();
  agreed.dataset_digest = theirs.dataset_digest;
  agreed.train_samples = theirs.train_samples;
  agreed.test_samples = theirs.test_samples;
  agreed.parameter_count = theirs.parameter_count;
  agreed.state_tensors = theirs.state_tensors;
  agreed.tensors = theirs.tensors;
  agreed.state_names = theirs.state_names;
  agreed.initial_digest = theirs.initial_digest;
  agreed.own_parameters = theirs.own_parameters;
  agreed.by = fmt::format("{} of {} workers", largest->size(), ready);
  const bool majority = 2 * largest->size() > ready;
  for (const std::vector<Member*>& camp : camps) {
    if (&camp == &*largest) continue;
    for (Member* member : camp) {
      std::string differs = Disagreement(*job, member->id.worker, member->ready);
      if (!majority) {
        job->Fail(differs + ": no majority says which is right");
        return false;
      }
      job->Evict(*member, std::move(differs), Leaving::Kind::kRefused);
    }
  }
  LOCKSTEP_CHECK(majority || camps.size() == 1, "a minority settles what the job is about");
  agreed.settled = true;
  return camps.size() == 1;
}

bool Admission::BeginAlikeAnew(Job* job) {
  const msg::Ready* first = nullptr;
  for (const Member& member : job->members.all()) {
    if (!member.connected() || member.state != MemberState::kForming) continue;
    if (member.ready.own_parameters) return false;
    if (first != nullptr && member.ready.initial_digest != first->initial_digest) return false;
    first = &member.ready;
  }
  if (first == nullptr) return false;
  job->agreed.Write().initial_digest = first->initial_digest;
  return true;
}

void Admission::OnConnected(ConnectionId connection, std::string address) {
  if (strangers_.size() >= Bound()) {
    job_->Emit(Close{connection, "too many unidentified connections"});
    return;
  }
  strangers_[connection] = {std::move(address), job_->now()};
}

void Admission::Refuse(ConnectionId connection, std::string reason, bool try_again) {
  LOCKSTEP_CHECK(strangers_.contains(connection), "a member is refused as a stranger is");
  if (refusals_.Allow(job_->now()))
    job_->Log(LogLevel::kWarning, "{}: refused: {}", strangers_[connection].address, reason);
  strangers_.erase(connection);
  job_->Emit(coordinator::Send{
      {connection}, std::make_shared<const msg::ToWorker>(msg::Refuse{reason, try_again})});
  job_->Emit(Close{connection, std::move(reason)});
}

std::string Admission::SettingsMismatch(const msg::Hello& hello) const {
  if (hello.settings.empty() || settings_.empty() || hello.settings == settings_) return {};
  std::istringstream theirs(hello.settings);
  std::istringstream ours(settings_);
  std::string says = "nothing more";
  std::string said = "nothing more";
  for (std::string a, b;;) {
    const bool more = static_cast<bool>(std::getline(theirs, a));
    const bool also = static_cast<bool>(std::getline(ours, b));
    if (!more && !also) break;
    if (more == also && a == b) continue;
    if (more) says = Quoted(a);
    if (also) said = Quoted(b);
    break;
  }
  return fmt::format("its program sets {}, where the first worker's program set {}", says, said);
}

// With the coordinator before this one; it may have the device of another worker that was put out.
bool Admission::WasInTheJob(const msg::Hello& hello) const {
  if (job_->start.journal.empty() || !hello.wanted) return false;
  const WorkerId worker = *hello.wanted;
  return std::ranges::binary_search(job_->start.journal.back().members, worker) &&
         worker.value < job_->members.slots() &&
         job_->members.at(worker).id.incarnation == Incarnation(0);
}

void Admission::OnFirst(ConnectionId connection, const msg::FromWorker& message) {
  LOCKSTEP_CHECK(strangers_.contains(connection), "the first message comes twice");
  const msg::Hello* hello = std::get_if<msg::Hello>(&message);
  if (hello == nullptr) return Refuse(connection, "the first message is not Hello");
  if (std::string other = ProtocolMismatch(*hello); !other.empty())
    return Refuse(connection, std::move(other));
  if (job_->phase() == Phase::kEnding || job_->phase() == Phase::kFinished) {
    return Refuse(connection, "the job is ending", true);
  }
  if (std::string difference = SettingsMismatch(*hello); !difference.empty())
    return Refuse(connection, std::move(difference));
  if (job_->wrong_devices().contains({hello->host, hello->host_id, hello->device}) &&
      !WasInTheJob(*hello)) {
    return Refuse(connection, fmt::format("{} of host {} has computed wrong gradients in this job "
                                          "(audit.share): start this worker on another one",
                                          hello->device, hello->host));
  }
  Member* member = job_->members.TakeSlot(hello->wanted, connection, job_->now());
  if (member == nullptr) {
    return Refuse(connection,
                  fmt::format("all {} workers of the job are there", job_->start.workers), true);
  }
  LOCKSTEP_CHECK(member->state == MemberState::kJoining && member->connection == connection,
                 "worker {} has a slot that is another's", member->id.worker);
  member->hello = *hello;
  if (settings_.empty()) settings_ = hello->settings;
  member->address = strangers_[connection].address;
  strangers_.erase(connection);
  job_->Log(LogLevel::kInfo, "worker {} (incarnation {}) joins from {}, host {}, pid {}, {}",
            member->id.worker, member->id.incarnation, member->address, hello->host, hello->pid,
            hello->device);
  job_->Send(*member,
             msg::Welcome{member->id, job_->start.term, job_->start.job_id, job_->start.job_key,
                          job_->start.config_text, job_->start.workers,
                          (job_->now() + job_->stopped() - job_->start.started).count(),
                          job_->start.run_id, job_->start.run_dir, standbys_, Decided(), true});
  job_->Ping(*member);
}

// A round is committed only once the one before it is decided.
std::optional<HeldParameters> Admission::Decided() const {
  const auto& journal = job_->start.journal;
  if (!job_->sharded()) return std::nullopt;
  for (auto entry = journal.rbegin(); entry != journal.rend(); ++entry) {
    if (entry->attempt && (entry->decided || entry != journal.rbegin())) return entry->held();
  }
  return std::nullopt;
}

void Admission::OnStandbys(std::vector<std::string> addresses) {
  standbys_ = std::move(addresses);
  for (const Member& member : job_->members.all()) {
    if (member.connected() && !member.leaving) job_->Send(member, msg::Standbys{standbys_});
  }
}

Status Admission::OnReady(Member& from, const msg::Ready& message) {
  if (from.state != MemberState::kJoining) {
    return Error{ErrorCode::kInvalid, "said Ready twice"};
  }
  if (message.train_samples == 0 || message.parameter_count == 0) {
    job_->Evict(from, "it has no training samples or no parameters", Leaving::Kind::kRefused);
    return {};
  }
  if (message.train_samples > msg::kMaxSamples || message.test_samples > msg::kMaxSamples) {
    job_->Evict(from,
                fmt::format("it has {} training samples and {} test samples, of at most {} each",
                            message.train_samples, message.test_samples, msg::kMaxSamples),
                Leaving::Kind::kRefused);
    return {};
  }
  const std::uint32_t shards = job_->start.config.optimizer.Shards(job_->start.workers);
  if (!message.held_shards.empty() && message.held_shards.back() >= shards) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("holds shard {} of {}", message.held_shards.back(), shards)};
  }
  const std::string& wanted = job_->start.config.data.digest;
  if (!wanted.empty() && message.dataset_digest != wanted) {
    job_->Evict(from,
                fmt::format("the data of worker {} have the digest {}, data.digest is {}",
                            from.id.worker, message.dataset_digest, wanted),
                Leaving::Kind::kRefused);
    return {};
  }
  if (job_->agreed().settled) {
    std::string difference = Disagreement(*job_, from.id.worker, message);
    if (!difference.empty()) {
      job_->Evict(from, std::move(difference), Leaving::Kind::kRefused);
      return {};
    }
  }
  from.ready = message;
  job_->members.SetState(from, MemberState::kReady, job_->now());
  return {};
}

void Admission::Tick() {
  if (const std::uint64_t count = refusals_.TakeLeftOut(job_->now()); count > 0)
    job_->Log(LogLevel::kWarning, "{} more connections were refused", count);
  std::vector<ConnectionId> silent;
  for (const auto& [connection, stranger] : strangers_) {
    if (stranger.since + job_->timeout <= job_->now()) silent.push_back(connection);
  }
  for (const ConnectionId connection : silent) {
    strangers_.erase(connection);
    job_->Emit(Close{connection, "it did not identify itself"});
  }
}

void Admission::CloseAll(const std::string& reason) {
  while (!strangers_.empty()) Refuse(strangers_.begin()->first, reason, true);
}

void Admission::CheckInvariants() const {
  LOCKSTEP_CHECK(strangers_.size() <= Bound(), "I7: {} connections have not said who they are",
                 strangers_.size());
  for (const auto& [connection, stranger] : strangers_) {
    LOCKSTEP_CHECK(job_->members.Find(connection) == nullptr,
                   "a connection is a member's and a stranger's");
    LOCKSTEP_CHECK(stranger.since <= job_->now(), "a stranger comes in time to come");
  }
  const Agreement& agreed = job_->agreed();
  LOCKSTEP_CHECK(!agreed.settled || (agreed.parameter_count > 0 && agreed.train_samples > 0),
                 "all agree on a job about nothing");
  LOCKSTEP_CHECK(job_->phase() != Phase::kTraining || agreed.settled,
                 "the job trains and nobody has agreed on what");
}

}  // namespace lockstep::coordinator
