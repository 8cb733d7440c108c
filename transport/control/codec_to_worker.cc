#include <fmt/format.h>

#include <cmath>

#include "transport/control/codec.h"
#include "transport/control/wire.h"

namespace lockstep::transport::control {
namespace {

void Put(const PeerInfo& in, wire::PeerInfo* out) {
  control::Put(in.member, out->mutable_member());
  out->set_data_address(in.data_address);
  out->set_mapping_address(in.mapping_address);
  out->set_host_id(std::string(Cut(in.host_id)));
}

PeerInfo Get(const wire::PeerInfo& in, Checks& checks) {
  return {control::Get(in.member()), GetAddress(in.data_address(), checks),
          GetAddress(in.mapping_address(), checks), GetText(in.host_id(), checks)};
}

std::vector<PeerInfo> GetPeers(const google::protobuf::RepeatedPtrField<wire::PeerInfo>& in,
                               Checks& checks) {
  return GetAll<PeerInfo>(in, kMaxMembers, checks,
                          [&](const wire::PeerInfo& peer) { return Get(peer, checks); });
}

void Put(const FenceRound& in, wire::FenceRound* out) {
  out->set_round(in.round.value);
  out->set_order(in.order);
}

void Put(const Commit& in, wire::Commit* out) {
  out->set_term(in.term.value);
  out->set_round(in.round.value);
  out->set_attempt(in.attempt.value);
  out->set_epoch(in.epoch.value);
  PutParts(in.parts, out->mutable_parts());
  control::Put(in.owners, out->mutable_owners());
  PutMembers(in.members, out->mutable_members());
  out->set_samples(in.samples);
  out->set_scale(in.scale);
  out->set_learning_rate(in.learning_rate);
  out->set_fraction(in.fraction);
  out->set_update(in.update);
  out->set_steps(in.steps);
  if (in.next) control::Put(*in.next, out->mutable_next());
  if (in.checkpoint_writer) {
    control::Put(*in.checkpoint_writer, out->mutable_checkpoint_writer());
  }
  out->set_evaluation(in.evaluation);
}

Commit Get(const wire::Commit& in, Checks& checks) {
  Commit out;
  out.term = Term(in.term());
  out.round = RoundId(in.round());
  out.attempt = Attempt(in.attempt());
  out.epoch = Epoch(in.epoch());
  out.parts = GetParts(in.parts(), checks);
  checks.Require(!out.parts.empty(), "a commit of nothing");
  out.owners = control::Get(in.owners(), checks);
  out.members = GetMembers(in.members(), checks);
  out.samples = in.samples();
  out.scale = in.scale();
  out.learning_rate = in.learning_rate();
  out.fraction = in.fraction();
  checks.Require(std::isfinite(out.scale) && std::isfinite(out.learning_rate),
                 "a scalar that is no number");
  checks.Require(out.fraction > 0 && std::isfinite(out.fraction),
                 "an update that is no part of a step");
  out.update = in.update();
  out.steps = in.steps();
  checks.Require(out.steps > 0, "an update before the first step");
  if (in.has_next()) out.next = control::Get(in.next(), checks);
  if (in.has_checkpoint_writer()) out.checkpoint_writer = control::Get(in.checkpoint_writer());
  out.evaluation = in.evaluation();
  return out;
}

Welcome Get(const wire::Welcome& in, Checks& checks) {
  Welcome out;
  out.self = control::Get(in.self());
  out.term = Term(in.term());
  out.job_id = GetText(in.job_id(), checks);
  checks.Require(in.job_key().size() == kJobKeyBytes, "a job key of the wrong length");
  checks.Require(in.config_text().size() <= kMaxConfigBytes, "a config that is too long");
  if (!checks.wrong().empty()) return out;
  const auto* key = reinterpret_cast<const std::byte*>(in.job_key().data());
  out.job_key.assign(key, key + in.job_key().size());
  out.config_text = in.config_text();
  out.workers = in.workers();
  out.age_ns = in.age_ns();
  return out;
}

StateSource GetSource(wire::StateSource source, Checks& checks) {
  checks.Require(wire::StateSource_IsValid(source), "an unknown source of state");
  switch (source) {
    case wire::CHECKPOINT:
      return StateSource::kCheckpoint;
    case wire::PEERS:
      return StateSource::kPeers;
    default:
      return StateSource::kSeed;
  }
}

wire::StateSource PutSource(StateSource source) {
  switch (source) {
    case StateSource::kSeed:
      return wire::SEED;
    case StateSource::kCheckpoint:
      return wire::CHECKPOINT;
    case StateSource::kPeers:
      return wire::PEERS;
  }
  LOCKSTEP_CHECK(false, "no such source of state");
}

void Put(const ToWorker& message, wire::ToWorker* out) {
  std::visit(
      Overloaded{[&](const Welcome& in) {
                   auto* put = out->mutable_welcome();
                   control::Put(in.self, put->mutable_self());
                   put->set_term(in.term.value);
                   put->set_job_id(std::string(Cut(in.job_id)));
                   put->set_job_key(in.job_key.data(), in.job_key.size());
                   put->set_config_text(in.config_text);
                   put->set_workers(in.workers);
                   put->set_age_ns(in.age_ns);
                 },
                 [&](const Refuse& in) {
                   out->mutable_refuse()->set_reason(std::string(Cut(in.reason)));
                   out->mutable_refuse()->set_try_again(in.try_again);
                 },
                 [&](const Form& in) {
                   auto* put = out->mutable_form();
                   put->set_formation(in.formation);
                   put->set_transport(std::string(Cut(in.transport)));
                   for (const PeerInfo& peer : in.connect_to) Put(peer, put->add_connect_to());
                   for (const PeerInfo& peer : in.expect) Put(peer, put->add_expect());
                 },
                 [&](const MemberLeft& in) {
                   control::Put(in.member, out->mutable_member_left()->mutable_member());
                   out->mutable_member_left()->set_reason(std::string(Cut(in.reason)));
                 },
                 [&](const Start& in) {
                   auto* put = out->mutable_start();
                   put->set_source(PutSource(in.source));
                   control::Put(in.plan, put->mutable_plan());
                   put->set_total_samples_before(in.total_samples_before);
                 },
                 [&](const Commit& in) { Put(in, out->mutable_commit()); },
                 [&](const Revoke& in) {
                   out->mutable_revoke()->set_round(in.round.value);
                   out->mutable_revoke()->set_from(in.from);
                   out->mutable_revoke()->set_order(in.order);
                 },
                 [&](const Assign& in) {
                   out->mutable_assign()->set_round(in.round.value);
                   PutUnits(in.units, out->mutable_assign()->mutable_units());
                   out->mutable_assign()->set_order(in.order);
                 },
                 [&](const FenceRound& in) { Put(in, out->mutable_fence_round()); },
                 [&](const NewOwners& in) {
                   out->mutable_new_owners()->set_round(in.round.value);
                   control::Put(in.owners, out->mutable_new_owners()->mutable_owners());
                 },
                 [&](const FenceAttempt& in) {
                   auto* put = out->mutable_fence_attempt();
                   put->set_term(in.term.value);
                   put->set_round(in.round.value);
                   put->set_attempt(in.attempt.value);
                   put->set_order(in.order);
                 },
                 [&](const TakeSums& in) {
                   Put(in.commit, out->mutable_take_sums()->mutable_commit());
                   control::Put(in.holder, out->mutable_take_sums()->mutable_holder());
                 },
                 [&](const CatchUp& in) {
                   control::Put(in.donor, out->mutable_catch_up()->mutable_donor());
                   out->mutable_catch_up()->set_open_round(in.open_round.value);
                   out->mutable_catch_up()->set_order(in.order);
                 },
                 [&](const Evaluate& in) {
                   auto* put = out->mutable_evaluate();
                   put->set_evaluation(in.evaluation);
                   put->set_round(in.round.value);
                   control::Put(in.range, put->mutable_range());
                 },
                 [&](const StateChunk& in) { control::Put(in, out->mutable_state_chunk()); },
                 [&](const Finish& in) {
                   out->mutable_finish()->set_reason(std::string(Cut(in.reason)));
                   out->mutable_finish()->set_failed(in.failed);
                 },
                 [&](const SetSlowdown& in) { out->mutable_set_slowdown()->set_specs(in.specs); },
                 [&](const AskToLeave& in) {
                   out->mutable_ask_to_leave()->set_reason(std::string(Cut(in.reason)));
                 },
                 [&](const Ping& in) {
                   out->mutable_ping()->set_sequence(in.sequence);
                   out->mutable_ping()->set_sent_ns(in.sent_ns);
                 }},
      message);
}

ToWorker FromWire(const wire::ToWorker& in, Checks& checks) {
  switch (in.kind_case()) {
    case wire::ToWorker::kWelcome:
      return Get(in.welcome(), checks);
    case wire::ToWorker::kRefuse:
      return Refuse{GetText(in.refuse().reason(), checks), in.refuse().try_again()};
    case wire::ToWorker::kForm:
      return Form{in.form().formation(), GetText(in.form().transport(), checks),
                  GetPeers(in.form().connect_to(), checks), GetPeers(in.form().expect(), checks)};
    case wire::ToWorker::kMemberLeft:
      return MemberLeft{control::Get(in.member_left().member()),
                        GetText(in.member_left().reason(), checks)};
    case wire::ToWorker::kStart:
      return Start{GetSource(in.start().source(), checks), control::Get(in.start().plan(), checks),
                   in.start().total_samples_before()};
    case wire::ToWorker::kCommit:
      return Get(in.commit(), checks);
    case wire::ToWorker::kRevoke:
      return Revoke{RoundId(in.revoke().round()), in.revoke().from(), in.revoke().order()};
    case wire::ToWorker::kAssign:
      return Assign{RoundId(in.assign().round()), GetUnits(in.assign().units(), checks),
                    in.assign().order()};
    case wire::ToWorker::kFenceRound:
      return FenceRound{RoundId(in.fence_round().round()), in.fence_round().order()};
    case wire::ToWorker::kNewOwners:
      return NewOwners{RoundId(in.new_owners().round()),
                       control::Get(in.new_owners().owners(), checks)};
    case wire::ToWorker::kFenceAttempt:
      return FenceAttempt{Term(in.fence_attempt().term()), RoundId(in.fence_attempt().round()),
                          Attempt(in.fence_attempt().attempt()), in.fence_attempt().order()};
    case wire::ToWorker::kTakeSums:
      return TakeSums{Get(in.take_sums().commit(), checks), control::Get(in.take_sums().holder())};
    case wire::ToWorker::kCatchUp:
      return CatchUp{control::Get(in.catch_up().donor()), RoundId(in.catch_up().open_round()),
                     in.catch_up().order()};
    case wire::ToWorker::kEvaluate:
      return Evaluate{in.evaluate().evaluation(), RoundId(in.evaluate().round()),
                      control::Get(in.evaluate().range(), checks)};
    case wire::ToWorker::kStateChunk:
      return control::Get(in.state_chunk(), checks);
    case wire::ToWorker::kFinish:
      return Finish{GetText(in.finish().reason(), checks), in.finish().failed()};
    case wire::ToWorker::kAskToLeave:
      return AskToLeave{GetText(in.ask_to_leave().reason(), checks)};
    case wire::ToWorker::kSetSlowdown:
      return SetSlowdown{GetSlowdowns(in.set_slowdown().specs(), checks)};
    case wire::ToWorker::kPing:
      return Ping{in.ping().sequence(), in.ping().sent_ns()};
    case wire::ToWorker::KIND_NOT_SET:
      break;
  }
  checks.Require(false, "a kind that is not known here");
  return Refuse{};
}

}  // namespace

std::string Encode(const ToWorker& message) {
  OnArena<wire::ToWorker> out;
  Put(message, out.get());
  return out->SerializeAsString();
}

Result<ToWorker> DecodeToWorker(std::span<const std::byte> bytes) {
  OnArena<wire::ToWorker> in;
  if (!ParseBounded(bytes, in.get())) {
    return Error{ErrorCode::kInvalid, "bytes that are no message to a worker"};
  }
  Checks checks;
  ToWorker message = FromWire(*in, checks);
  if (!checks.wrong().empty()) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("a message to a worker (kind {}) with {}",
                             static_cast<int>(in->kind_case()), checks.wrong())};
  }
  return message;
}

}  // namespace lockstep::transport::control
