#include <fmt/format.h>

#include <cmath>

#include "transport/control/codec.h"
#include "transport/control/wire.h"

namespace lockstep::transport::control {
namespace {

void Put(const Ready& in, wire::Ready* out) {
  for (const TransportOffer& offer : in.transports) {
    wire::TransportOffer* put = out->add_transports();
    put->set_name(std::string(Cut(offer.name)));
    put->set_address(offer.address);
    put->set_error(std::string(Cut(offer.error)));
  }
  out->set_mapping_address(in.mapping_address);
  out->set_dataset_digest(std::string(Cut(in.dataset_digest)));
  out->set_train_samples(in.train_samples);
  out->set_test_samples(in.test_samples);
  out->set_parameter_count(in.parameter_count);
  out->set_state_tensors(in.state_tensors);
  for (const TensorInfo& tensor : in.tensors) {
    wire::TensorInfo* put = out->add_tensors();
    put->set_name(std::string(Cut(tensor.name)));
    for (std::uint64_t extent : tensor.shape) put->add_shape(extent);
  }
  for (const std::string& name : in.state_names) out->add_state_names(std::string(Cut(name)));
  out->set_slowdowns(in.slowdowns);
}

// Names and shapes only describe; what must be right about them is that they add up.
std::vector<TensorInfo> GetTensors(const wire::Ready& in, Checks& checks) {
  std::uint64_t values = 0;
  auto tensors =
      GetAll<TensorInfo>(in.tensors(), kMaxTensors, checks, [&](const wire::TensorInfo& tensor) {
        TensorInfo out{GetText(tensor.name(), checks), {}};
        checks.Require(static_cast<std::size_t>(tensor.shape_size()) <= kMaxDimensions,
                       "a tensor of too many dimensions");
        std::uint64_t count = 1;
        for (std::uint64_t extent : tensor.shape()) {
          checks.Require(extent == 0 || count <= in.parameter_count() / extent,
                         "a tensor is larger than the model");
          if (!checks.wrong().empty()) return out;
          count *= extent;
          out.shape.push_back(extent);
        }
        checks.Require(count <= in.parameter_count() - values,
                       "the tensors are larger than the model");
        if (checks.wrong().empty()) values += count;
        return out;
      });
  checks.Require(tensors.empty() || values == in.parameter_count(),
                 "the tensors are not the whole model");
  return tensors;
}

Ready Get(const wire::Ready& in, Checks& checks) {
  Ready out;
  out.transports = GetAll<TransportOffer>(
      in.transports(), kMaxTransports, checks, [&](const wire::TransportOffer& offer) {
        return TransportOffer{GetText(offer.name(), checks), GetAddress(offer.address(), checks),
                              GetText(offer.error(), checks)};
      });
  out.mapping_address = GetAddress(in.mapping_address(), checks);
  out.dataset_digest = GetText(in.dataset_digest(), checks);
  out.train_samples = in.train_samples();
  out.test_samples = in.test_samples();
  out.parameter_count = in.parameter_count();
  out.state_tensors = in.state_tensors();
  out.tensors = GetTensors(in, checks);
  out.state_names =
      GetAll<std::string>(in.state_names(), kMaxTensors, checks,
                          [&](const std::string& name) { return GetText(name, checks); });
  out.slowdowns = GetSlowdowns(in.slowdowns(), checks);
  return out;
}

void Put(const Reached& in, wire::Reached* out) {
  out->set_formation(in.formation);
  for (const PeerPath& peer : in.peers) {
    wire::PeerPath* put = out->add_peers();
    control::Put(peer.peer, put->mutable_peer());
    put->set_reached(peer.reached);
    put->set_error(std::string(Cut(peer.error)));
    put->set_mapped(peer.mapped);
    put->set_path(std::string(Cut(peer.path)));
    put->set_gb_per_second(peer.gb_per_second);
  }
}

Reached Get(const wire::Reached& in, Checks& checks) {
  Reached out;
  out.formation = in.formation();
  out.peers = GetAll<PeerPath>(in.peers(), kMaxMembers, checks, [&](const wire::PeerPath& peer) {
    checks.Require(std::isfinite(peer.gb_per_second()), "a speed that is no number");
    return PeerPath{control::Get(peer.peer()),     peer.reached(),
                    GetText(peer.error(), checks), peer.mapped(),
                    GetText(peer.path(), checks),  peer.gb_per_second()};
  });
  return out;
}

void Put(const Sealed& in, wire::Sealed* out) {
  out->set_round(in.round.value);
  out->set_part(in.part.value);
  out->set_samples(in.samples);
  out->set_loss_sum(in.loss_sum);
  for (const UnitTiming& timing : in.units) {
    wire::UnitTiming* put = out->add_units();
    control::Put(timing.unit, put->mutable_unit());
    put->set_start_ns(timing.start_ns);
    put->set_end_ns(timing.end_ns);
  }
  out->set_sealed_ns(in.sealed_ns);
  out->set_plan(in.plan.value);
}

Sealed Get(const wire::Sealed& in, Checks& checks) {
  Sealed out;
  out.round = RoundId(in.round());
  out.part = GetPart(in.part(), checks);
  out.samples = in.samples();
  out.loss_sum = in.loss_sum();
  out.units =
      GetAll<UnitTiming>(in.units(), kMaxUnits, checks, [&](const wire::UnitTiming& timing) {
        checks.Require(timing.start_ns() <= timing.end_ns(), "a unit that ends before it begins");
        return UnitTiming{control::Get(timing.unit(), checks), timing.start_ns(), timing.end_ns()};
      });
  out.sealed_ns = in.sealed_ns();
  out.plan = Attempt(in.plan());
  return out;
}

void Put(const Receipts& in, wire::Receipts* out) {
  out->set_round(in.round.value);
  out->set_map_version(in.map_version);
  PutReceived(in.parts, out->mutable_parts());
}

Receipts Get(const wire::Receipts& in, Checks& checks) {
  Receipts out;
  out.round = RoundId(in.round());
  out.map_version = in.map_version();
  out.parts = GetReceived(in.parts(), checks);
  return out;
}

void Put(const Hello& in, wire::Hello* out) {
  out->set_protocol(in.protocol);
  out->set_version(std::string(Cut(in.version)));
  out->set_host(std::string(Cut(in.host)));
  out->set_pid(in.pid);
  out->set_device(std::string(Cut(in.device)));
  if (in.wanted) out->set_wanted(in.wanted->value);
  out->set_host_id(std::string(Cut(in.host_id)));
}

Hello Get(const wire::Hello& in, Checks& checks) {
  Hello out;
  out.protocol = in.protocol();
  out.version = GetText(in.version(), checks);
  out.host = GetText(in.host(), checks);
  out.pid = in.pid();
  out.device = GetText(in.device(), checks);
  if (in.has_wanted()) out.wanted = WorkerId(in.wanted());
  out.host_id = GetText(in.host_id(), checks);
  return out;
}

void Put(const FromWorker& message, wire::FromWorker* out) {
  std::visit(
      Overloaded{
          [&](const Hello& in) { Put(in, out->mutable_hello()); },
          [&](const Ready& in) { Put(in, out->mutable_ready()); },
          [&](const Reached& in) { Put(in, out->mutable_reached()); },
          [&](const Progress& in) {
            out->mutable_progress()->set_round(in.round.value);
            out->mutable_progress()->set_units_done(in.units_done);
            out->mutable_progress()->set_units_taken(in.units_taken);
            out->mutable_progress()->set_plan(in.plan.value);
          },
          [&](const Sealed& in) { Put(in, out->mutable_sealed()); },
          [&](const Receipts& in) { Put(in, out->mutable_receipts()); },
          [&](const Revoked& in) {
            out->mutable_revoked()->set_round(in.round.value);
            out->mutable_revoked()->set_from(in.from);
            out->mutable_revoked()->set_order(in.order);
            out->mutable_revoked()->set_fenced(in.fenced);
          },
          [&](const Published& in) {
            out->mutable_published()->set_round(in.round.value);
            out->mutable_published()->set_attempt(in.attempt.value);
          },
          [&](const Applied& in) {
            auto* put = out->mutable_applied();
            put->set_round(in.round.value);
            put->set_attempt(in.attempt.value);
            put->set_digest_slice(in.digest_slice);
            put->set_digest(in.digest);
            put->set_applied_ns(in.applied_ns);
          },
          [&](const HoldAnswer& in) {
            auto* put = out->mutable_hold_answer();
            put->set_term(in.term.value);
            put->set_round(in.round.value);
            put->set_attempt(in.attempt.value);
            put->set_holds_all(in.holds_all);
            put->set_order(in.order);
          },
          [&](const Behind& in) {
            auto* put = out->mutable_behind();
            put->set_applied(in.applied.value);
            put->set_has_any(in.has_any);
            put->set_reason(std::string(Cut(in.reason)));
            put->set_order(in.order);
          },
          [&](const Copied& in) {
            out->mutable_copied()->set_order(in.order);
            out->mutable_copied()->set_values(in.values);
          },
          [&](const Level& in) {
            out->mutable_level()->set_round(in.round.value);
            out->mutable_level()->set_order(in.order);
          },
          [&](const Unreachable& in) {
            control::Put(in.peer, out->mutable_unreachable()->mutable_peer());
            out->mutable_unreachable()->set_reason(std::string(Cut(in.reason)));
          },
          [&](const EvaluationResult& in) {
            auto* put = out->mutable_evaluation_result();
            put->set_evaluation(in.evaluation);
            control::Put(in.range, put->mutable_range());
            put->set_loss_sum(in.loss_sum);
            put->set_correct(in.correct);
          },
          [&](const StateChunk& in) { control::Put(in, out->mutable_state_chunk()); },
          [&](const Final& in) {
            out->mutable_final()->set_round(in.round.value);
            out->mutable_final()->set_params_digest(std::string(Cut(in.params_digest)));
          },
          [&](const Leave& in) { out->mutable_leave()->set_reason(std::string(Cut(in.reason))); },
          [&](const Pong& in) {
            auto* put = out->mutable_pong();
            put->set_sequence(in.sequence);
            put->set_ping_sent_ns(in.ping_sent_ns);
            put->set_answered_ns(in.answered_ns);
          },
          [&](const CheckpointTaken& in) { out->mutable_checkpoint_taken()->set_bytes(in.bytes); },
          [&](const ReplicaDigest& in) {
            auto* put = out->mutable_replica_digest();
            put->set_round(in.round.value);
            put->set_attempt(in.attempt.value);
            put->set_low(in.digest.low);
            put->set_high(in.digest.high);
          }},
      message);
}

FromWorker FromWire(const wire::FromWorker& in, Checks& checks) {
  switch (in.kind_case()) {
    case wire::FromWorker::kHello:
      return Get(in.hello(), checks);
    case wire::FromWorker::kReady:
      return Get(in.ready(), checks);
    case wire::FromWorker::kReached:
      return Get(in.reached(), checks);
    case wire::FromWorker::kProgress:
      return Progress{RoundId(in.progress().round()), in.progress().units_done(),
                      in.progress().units_taken(), Attempt(in.progress().plan())};
    case wire::FromWorker::kSealed:
      return Get(in.sealed(), checks);
    case wire::FromWorker::kReceipts:
      return Get(in.receipts(), checks);
    case wire::FromWorker::kRevoked:
      return Revoked{RoundId(in.revoked().round()), in.revoked().from(), in.revoked().order(),
                     in.revoked().fenced()};
    case wire::FromWorker::kPublished:
      return Published{RoundId(in.published().round()), Attempt(in.published().attempt())};
    case wire::FromWorker::kApplied:
      return Applied{RoundId(in.applied().round()), Attempt(in.applied().attempt()),
                     in.applied().digest_slice(), in.applied().digest(), in.applied().applied_ns()};
    case wire::FromWorker::kHoldAnswer:
      return HoldAnswer{Term(in.hold_answer().term()), RoundId(in.hold_answer().round()),
                        Attempt(in.hold_answer().attempt()), in.hold_answer().holds_all(),
                        in.hold_answer().order()};
    case wire::FromWorker::kBehind:
      return Behind{RoundId(in.behind().applied()), in.behind().has_any(),
                    GetText(in.behind().reason(), checks), in.behind().order()};
    case wire::FromWorker::kCopied:
      return Copied{in.copied().order(), in.copied().values()};
    case wire::FromWorker::kLevel:
      return Level{RoundId(in.level().round()), in.level().order()};
    case wire::FromWorker::kUnreachable:
      return Unreachable{control::Get(in.unreachable().peer()),
                         GetText(in.unreachable().reason(), checks)};
    case wire::FromWorker::kEvaluationResult: {
      const auto& result = in.evaluation_result();
      const SampleRange range = control::Get(result.range(), checks);
      checks.Require(result.correct() <= range.to - range.from, "more hits than samples");
      return EvaluationResult{result.evaluation(), range, result.loss_sum(), result.correct()};
    }
    case wire::FromWorker::kStateChunk:
      return control::Get(in.state_chunk(), checks);
    case wire::FromWorker::kFinal:
      return Final{RoundId(in.final().round()), GetText(in.final().params_digest(), checks)};
    case wire::FromWorker::kLeave:
      return Leave{GetText(in.leave().reason(), checks)};
    case wire::FromWorker::kPong:
      return Pong{in.pong().sequence(), in.pong().ping_sent_ns(), in.pong().answered_ns()};
    case wire::FromWorker::kCheckpointTaken:
      return CheckpointTaken{in.checkpoint_taken().bytes()};
    case wire::FromWorker::kReplicaDigest: {
      const auto& digest = in.replica_digest();
      return ReplicaDigest{
          RoundId(digest.round()), Attempt(digest.attempt()), {digest.low(), digest.high()}};
    }
    case wire::FromWorker::KIND_NOT_SET:
      break;
  }
  checks.Require(false, "a kind that is not known here");
  return Leave{};
}

}  // namespace

std::string Encode(const FromWorker& message) {
  OnArena<wire::FromWorker> out;
  Put(message, out.get());
  return out->SerializeAsString();
}

Result<FromWorker> DecodeFromWorker(std::span<const std::byte> bytes) {
  OnArena<wire::FromWorker> in;
  if (!ParseBounded(bytes, in.get())) {
    return Error{ErrorCode::kInvalid, "bytes that are no message of a worker"};
  }
  Checks checks;
  FromWorker message = FromWire(*in, checks);
  if (!checks.wrong().empty()) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("a message of a worker (kind {}) with {}",
                             static_cast<int>(in->kind_case()), checks.wrong())};
  }
  return message;
}

}  // namespace lockstep::transport::control
