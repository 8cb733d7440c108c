#include "coordinator/admission.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::coordinator {

const TransportOffer* OfferOf(const Ready& ready, std::string_view transport) {
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

void Admission::OnConnected(ConnectionId connection, std::string address) {
  if (strangers_.size() >= Bound()) {
    job_->out->push_back(Close{connection, "too many connections that have not said who they are"});
    return;
  }
  strangers_[connection] = {std::move(address), job_->now};
}

void Admission::Refuse(ConnectionId connection, std::string reason, bool try_again) {
  job_->Log(LogLevel::kWarning, "{}: refused: {}", strangers_[connection].address, reason);
  strangers_.erase(connection);
  job_->out->push_back(coordinator::Send{
      {connection}, std::make_shared<const ToWorker>(lockstep::Refuse{reason, try_again})});
  job_->out->push_back(Close{connection, std::move(reason)});
}

void Admission::OnFirst(ConnectionId connection, const FromWorker& message) {
  const Hello* hello = std::get_if<Hello>(&message);
  if (hello == nullptr) return Refuse(connection, "the first message is not Hello");
  if (hello->protocol != kProtocolVersion) {
    return Refuse(connection, fmt::format("this coordinator speaks version {} of the protocol, the "
                                          "worker (version {}) speaks {}",
                                          kProtocolVersion, hello->version, hello->protocol));
  }
  if (job_->phase == Phase::kEnding || job_->phase == Phase::kFinished) {
    return Refuse(connection, "the job is ending", true);
  }
  Member* member = job_->members.TakeSlot(hello->wanted, connection, job_->now);
  if (member == nullptr) {
    return Refuse(connection,
                  fmt::format("all {} workers of the job are there", job_->start.workers), true);
  }
  member->hello = *hello;
  member->address = strangers_[connection].address;
  strangers_.erase(connection);
  job_->Log(LogLevel::kInfo, "worker {} (incarnation {}) joins from {}, host {}, pid {}, {}",
            member->id.worker, member->id.incarnation, member->address, hello->host, hello->pid,
            hello->device);
  job_->Send(*member, Welcome{member->id, job_->start.term, job_->start.job_id, job_->start.job_key,
                              job_->start.config_text, job_->start.workers,
                              (job_->now + job_->stopped - job_->start.started).count()});
  job_->Ping(*member);
}

std::string Admission::Disagreement(WorkerId worker, const Ready& ready) const {
  if (ready.dataset_digest != job_->dataset_digest) {
    return fmt::format("the data of worker {} have the digest {}, those of {} have {}", worker,
                       ready.dataset_digest, job_->agreed_by, job_->dataset_digest);
  }
  const auto differs = [&](std::string_view what, std::uint64_t its, std::uint64_t ours) {
    return its == ours ? std::string()
                       : fmt::format("worker {} has {} {}, {} has {}", worker, its, what,
                                     job_->agreed_by, ours);
  };
  for (const std::string& text :
       {differs("training samples", ready.train_samples, job_->train_samples),
        differs("test samples", ready.test_samples, job_->test_samples),
        differs("parameters", ready.parameter_count, job_->parameter_count),
        differs("tensors of optimizer state", ready.state_tensors, job_->state_tensors)}) {
    if (!text.empty()) return text;
  }
  for (std::size_t i = 0; i < std::max(ready.tensors.size(), job_->tensors.size()); ++i) {
    if (i < ready.tensors.size() && i < job_->tensors.size() &&
        ready.tensors[i] == job_->tensors[i]) {
      continue;
    }
    const auto name = [i](const std::vector<TensorInfo>& tensors) {
      if (i >= tensors.size()) return std::string("no tensor");
      return tensors[i].name + " " + InWords(tensors[i].shape);
    };
    return fmt::format("worker {} has {} where {} has {}", worker, name(ready.tensors),
                       job_->agreed_by, name(job_->tensors));
  }
  if (ready.state_names != job_->state_names) {
    return fmt::format("worker {} has the optimizer state {}, {} has {}", worker,
                       InWords(ready.state_names), job_->agreed_by, InWords(job_->state_names));
  }
  return {};
}

Status Admission::On(Member& from, const Ready& message) {
  if (from.state != MemberState::kJoining) {
    return Error{ErrorCode::kInvalid, "said Ready twice"};
  }
  if (message.train_samples == 0 || message.parameter_count == 0) {
    job_->Expel(from, "it has no training samples or no parameters", true);
    return {};
  }
  if (!job_->agreed) {
    job_->agreed = true;
    job_->dataset_digest = message.dataset_digest;
    job_->train_samples = message.train_samples;
    job_->test_samples = message.test_samples;
    job_->parameter_count = message.parameter_count;
    job_->state_tensors = message.state_tensors;
    job_->tensors = message.tensors;
    job_->state_names = message.state_names;
    job_->agreed_by = fmt::format("worker {}", from.id.worker);
  } else if (std::string difference = Disagreement(from.id.worker, message); !difference.empty()) {
    job_->Expel(from, std::move(difference), true);
    return {};
  }
  from.ready = message;
  job_->members.SetState(from, MemberState::kReady, job_->now);
  return {};
}

void Admission::Tick() {
  std::vector<ConnectionId> silent;
  for (const auto& [connection, stranger] : strangers_) {
    if (stranger.since + job_->timeout <= job_->now) silent.push_back(connection);
  }
  for (const ConnectionId connection : silent) {
    strangers_.erase(connection);
    job_->out->push_back(Close{connection, "it did not say who it is"});
  }
}

void Admission::CloseAll(const std::string& reason) {
  while (!strangers_.empty()) Refuse(strangers_.begin()->first, reason, true);
}

}  // namespace lockstep::coordinator
