#include "worker/core/protocol_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "base/routes.h"

namespace lockstep::worker {
namespace {

template <class... Args>
Error Broken(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorCode::kInvalid, fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace

Status ProtocolCheck::Take(const msg::ToWorker& message) {
  return std::visit([this](const auto& m) { return Check(m); }, message);
}

Status ProtocolCheck::Check(const msg::Welcome&) const {
  return Broken("it welcomes this worker twice");
}

Status ProtocolCheck::Check(const msg::Followed&) const {
  return Broken("it tells a worker what a standby follows");
}

// A transport that was not offered could not be opened.
Status ProtocolCheck::Check(const msg::Form& m) const {
  const auto& offered = config_.transports;
  if (!offered.empty() && std::ranges::find(offered, m.transport) == offered.end()) {
    return Broken("it forms the job over {}, which this worker did not offer", m.transport);
  }
  return {};
}

// Once, with a whole state; later ones only bring a plan.
Status ProtocolCheck::Check(const msg::Start& m) {
  if (Status status = CheckPlan(m.plan); !status) return status;
  if (started_ && m.source != StateSource::kPeers) return Broken("it starts what has started");
  if (!started_ && m.source == StateSource::kCheckpoint && next_tensor_ <= config_.state_tensors) {
    return Broken("it starts from a checkpoint of which tensor {} came to byte {}", next_tensor_,
                  next_offset_);
  }
  if (!started_ && m.source == StateSource::kGiven && giving_ == 0 &&
      (next_tensor_ != 1 || next_offset_ != 0)) {
    return Broken("it starts from one worker's parameters, which came to byte {}", next_offset_);
  }
  if (m.source == StateSource::kHeld && (!config_.held || config_.held->next != m.plan.round)) {
    return Broken("it starts at round {} with parameters that this worker does not hold",
                  m.plan.round);
  }
  if ((m.checkpoint_writer || m.evaluation != 0) && (!started_ || m.plan.round == RoundId(0))) {
    return Broken("it wants the last state before round {}, and nothing has begun", m.plan.round);
  }
  started_ = true;
  return {};
}

// Of another term it would be from a coordinator that is no more; such a connection is closed long
// before, so it is not forgiven.
Status ProtocolCheck::Check(const msg::Commit& m) const {
  if (m.term != config_.term) {
    return Broken("it commits in term {}, and this one is {}", m.term, config_.term);
  }
  if (!started_) return Broken("it commits round {} before the start", m.round);
  if (Status status = CheckRound(m.round); !status) return status;
  if (m.parts.empty()) return Broken("it commits round {} over nothing", m.round);
  const auto in_order = [](const CommittedPart& a, const CommittedPart& b) {
    return std::pair(a.member.worker, a.part) < std::pair(b.member.worker, b.part);
  };
  // Each counts once (I2), and everybody sums them in the same order (I3).
  if (std::ranges::adjacent_find(m.parts, std::not_fn(in_order)) != m.parts.end()) {
    return Broken("it commits the parts of round {} out of order", m.round);
  }
  if (Status status = CheckOwners(m.owners); !status) return status;
  if (Status status = CheckRoots(m); !status) return status;
  if (!m.next) return {};
  if (m.next->round != m.round.Next()) {
    return Broken("it plans round {} with the commit of round {}", m.next->round, m.round);
  }
  return CheckPlan(*m.next);
}

// Who it is for is not checked: it came over this worker's own connection.
Status ProtocolCheck::Check(const msg::Assign& m) const {
  if (Status status = CheckRound(m.round); !status) return status;
  return CheckUnits(m.units);
}

Status ProtocolCheck::Check(const msg::NewOwners& m) const {
  if (Status status = CheckRound(m.round); !status) return status;
  return CheckOwners(m.owners);
}

// A promise to an older coordinator would bind nobody: its term is over.
Status ProtocolCheck::Check(const msg::FenceAttempt& m) const {
  if (m.term != config_.term) {
    return Broken("it asks for an attempt of term {}, and this one is {}", m.term, config_.term);
  }
  return CheckRound(m.round);
}

Status ProtocolCheck::Check(const msg::Hedge& m) const {
  if (m.term != config_.term) {
    return Broken("it hedges an attempt of term {}, and this one is {}", m.term, config_.term);
  }
  if (m.owner == m.by) return Broken("it lets worker {} stand in for itself", m.by.worker);
  return CheckRound(m.round);
}

Status ProtocolCheck::Check(const msg::TakeSums& m) const { return Check(m.commit); }

// The donor may be unknown, or gone by now: that is not the coordinator's fault.
Status ProtocolCheck::Check(const msg::CatchUp& m) const {
  if (!started_) return Broken("it lets catch up who has not begun");
  if (m.donor == config_.self || std::ranges::find(m.others, config_.self) != m.others.end()) {
    return Broken("it lets this worker catch up from itself");
  }
  return CheckRound(m.open_round);
}

Status ProtocolCheck::Check(const msg::Evaluate& m) const {
  if (m.range.from >= m.range.to || m.range.to > config_.test_samples) {
    return Broken("it lets evaluate the test samples [{}, {}) of {}", m.range.from, m.range.to,
                  config_.test_samples);
  }
  return CheckRound(m.round);
}

// Onwards only, and no more than there is.
Status ProtocolCheck::Check(const msg::GiveParameters& m) {
  const bool onwards = m.giving > giving_ || (m.giving == giving_ && m.upto >= give_upto_);
  if (m.giving == 0 || !onwards || m.upto > layout_.parameter_count() * sizeof(float) ||
      m.upto % sizeof(float) != 0) {
    return Broken("it asks for the parameters up to byte {} in giving {}, after {} in {}", m.upto,
                  m.giving, give_upto_, giving_);
  }
  giving_ = m.giving;
  give_upto_ = m.upto;
  return {};
}

// Only the beginning of a job brings state from the coordinator: all of a checkpoint, or one
// worker's parameters, which begin anew when that worker goes.
Status ProtocolCheck::Check(const msg::StateChunk& m) {
  if (started_) return {};  // the core has no use for it
  const std::uint64_t tensor_bytes = layout_.parameter_count() * sizeof(float);
  const bool parameters_only = next_tensor_ == 0 || (next_tensor_ == 1 && next_offset_ == 0);
  if (parameters_only && m.tensor == 0 && m.offset == 0) next_tensor_ = next_offset_ = 0;
  // In order, so that a checkpoint is whole when its last byte is there.
  if (m.tensor != next_tensor_ || m.offset != next_offset_ || m.tensor > config_.state_tensors ||
      m.bytes.size() > tensor_bytes - m.offset || m.bytes.size() % sizeof(float) != 0) {
    return Broken("it sends {} bytes of state at tensor {} byte {}, after tensor {} byte {} of {}",
                  m.bytes.size(), m.tensor, m.offset, next_tensor_, next_offset_, tensor_bytes);
  }
  next_offset_ += m.bytes.size();
  if (next_offset_ == tensor_bytes) {
    next_offset_ = 0;
    ++next_tensor_;
  }
  return {};
}

// So far from the end of its type that no sum of rounds here can overflow.
Status ProtocolCheck::CheckRound(RoundId round) const {
  if (round.value < kMaxRounds) return {};
  return Broken("it speaks of round {}", round);
}

// Every position is within the data, and a unit fits into the buffers of a batch.
Status ProtocolCheck::CheckUnits(const std::vector<Unit>& units) const {
  if (units.size() > config_.queue_capacity) {
    return Broken("it gives {} units, of at most {}", units.size(), config_.queue_capacity);
  }
  for (const Unit& unit : units) {
    const SampleRange& range = unit.range;
    if (range.from >= range.to || range.to > config_.train_samples ||
        range.size() > config_.unit_samples) {
      return Broken("it gives the unit [{}, {}) of {} samples, of which a unit has at most {}",
                    range.from, range.to, config_.train_samples, config_.unit_samples);
    }
  }
  return {};
}

// In the order of worker ids, each once: the cut of the buckets depends on the order, and on a sum
// of weights that must not overflow.
Status ProtocolCheck::CheckOwners(const OwnerMap& map) const {
  if (map.owners.empty() || map.owners.size() > kMaxMembers) {
    return Broken("it names {} owners", map.owners.size());
  }
  for (std::size_t i = 0; i < map.owners.size(); ++i) {
    const OwnerShare& share = map.owners[i];
    if (share.weight == 0 || share.weight > kMaxOwnerWeight) {
      return Broken("it gives worker {} the weight {} as an owner", share.owner.worker,
                    share.weight);
    }
    if (i > 0 && map.owners[i - 1].owner.worker >= share.owner.worker) {
      return Broken("it names owners out of order");
    }
  }
  if (map.holders.size() != config_.shards) {
    return Broken("it names the holders of {} shards of {}", map.holders.size(), config_.shards);
  }
  return {};
}

// Everybody who is asked to pass sums on has a part to add, and all agree who ends the routes.
Status ProtocolCheck::CheckRoots(const msg::Commit& m) const {
  if (m.owners.direct()) return {};
  const std::vector<MemberId> contributors = ContributorsOf(m);
  const OwnerMap roots = RootsOf(m.owners.algorithm, m.owners.version, contributors);
  if (m.owners != roots || layout_.number_bytes() != sizeof(float) || layout_.compressed() ||
      !std::ranges::is_sorted(m.members) || !std::ranges::includes(m.members, contributors)) {
    return Broken("it lets pass on the sums of round {} by who cannot", m.round);
  }
  return {};
}

// Only the own units: those of others are not looked at here, and may be very many.
Status ProtocolCheck::CheckPlan(const Plan& plan) const {
  if (Status status = CheckRound(plan.round); !status) return status;
  if (Status status = CheckOwners(plan.owners); !status) return status;
  for (const Assignment& assignment : plan.assignments) {
    if (assignment.member != config_.self) continue;
    if (Status status = CheckUnits(assignment.units); !status) return status;
  }
  for (const Audit& audit : plan.audits) {
    if (std::ranges::find(audit.by, config_.self) == audit.by.end()) continue;
    if (Status status = CheckUnits({audit.unit}); !status) return status;
  }
  return {};
}

}  // namespace lockstep::worker
