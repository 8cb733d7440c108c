#include "tests/golden/conversations/describe_worker.h"

#include <fmt/format.h>

#include "tools/simulate/describe.h"
#include "worker/core/peer_messages.h"

namespace lockstep::simulate {
namespace {

namespace action = worker::action;
namespace event = worker::event;
using worker::PieceKind;

struct PeerWords {
  std::string operator()(const worker::PartReady& m) const {
    return fmt::format("PartReady round {} part {}: {}{}{}", m.round, m.part,
                       m.sealed ? "sealed, all " : "the first ",
                       fmt::format("{} buckets", m.buckets), Inlined(m.inlined));
  }
  std::string operator()(const worker::SumReady& m) const {
    const std::string passed =
        m.passed ? fmt::format(": {} pieces of {} sums of shard {}", m.passed->pieces,
                               m.passed->whole ? "whole" : "partial", m.passed->shard)
                 : "";
    return fmt::format("SumReady round {} attempt {}{}{}{}", m.round, m.attempt,
                       m.gone ? ": gone" : "", passed, Inlined(m.inlined));
  }
  std::string operator()(const worker::SumWant& m) const {
    return fmt::format("SumWant round {} attempt {}", m.round, m.attempt);
  }
  std::string operator()(const worker::MapState& m) const {
    return m.maps_you ? "MapState: I read your memory" : "MapState: I do not read your memory";
  }
  std::string operator()(const worker::StateWant& m) const {
    return fmt::format("StateWant bucket {}, with at least {} rounds applied", m.bucket,
                       m.min_version);
  }
  std::string operator()(const worker::StateReady& m) const {
    if (m.gone) return fmt::format("StateReady bucket {}: gone", m.bucket);
    return fmt::format("StateReady bucket {}, with {} rounds applied", m.bucket, m.version);
  }
  std::string operator()(const worker::StateTaken&) const { return "StateTaken"; }
  std::string operator()(const worker::Alive&) const { return ""; }
  std::string operator()(const worker::ParametersReady& m) const {
    return fmt::format("ParametersReady version {} attempt {}: {} shards", m.version, m.attempt,
                       m.shards.size());
  }

  static std::string Inlined(const worker::InlineRanges& inlined) {
    return inlined.ranges.empty() ? "" : fmt::format(", with its {} numbers", inlined.Floats());
  }
};

std::string Describe(const PieceName& piece) {
  const std::uint64_t from = piece.offset / sizeof(float);
  const std::uint64_t to = from + piece.bytes / sizeof(float);
  switch (static_cast<PieceKind>(piece.kind)) {
    case PieceKind::kContribution:
      return fmt::format("[{}, {}) of its part {} of round {}", from, to, piece.part, piece.round);
    case PieceKind::kSum:
      return fmt::format("[{}, {}) of the sums of round {} attempt {}", from, to, piece.round,
                         piece.attempt);
    case PieceKind::kPartialSum:
      return fmt::format("[{}, {}) of the partial sums of round {} attempt {}", from, to,
                         piece.round, piece.attempt);
    case PieceKind::kState:
      return fmt::format("[{}, {}) of a copied bucket", from, to);
    case PieceKind::kParameters:
      return fmt::format("[{}, {}) of the parameters of version {}", from, to, piece.round);
    case PieceKind::kHeldState:
      return fmt::format("[{}, {}) of what is held of tensor {} at version {}", from, to,
                         piece.part, piece.round);
  }
  return "";
}

struct EventWords {
  std::string operator()(const event::PeerDown& e) const {
    return fmt::format("the connection to {} is down ({})", e.peer.worker, e.reason);
  }
  std::string operator()(const event::ConnectFailed& e) const {
    return fmt::format("cannot connect to {} ({})", e.peer.worker, e.reason);
  }
  std::string operator()(const event::FetchDone& e) const {
    switch (e.status) {
      case FetchStatus::kOk:
        return "";
      case FetchStatus::kGone:
        return "a fetch is refused: gone";
      case FetchStatus::kGivenUp:
        return "a fetch has been given up";
      case FetchStatus::kPeerDown:
        return "a fetch ends with its peer";
    }
    return "";
  }
  template <class Other>
  std::string operator()(const Other&) const {
    return "";
  }
};

struct ActionWords {
  std::string operator()(const action::ToCoordinator& a) const {
    if (std::holds_alternative<msg::Pong>(a.message)) return "";
    return fmt::format(" -> coordinator: {}", coordinator::Describe(a.message));
  }
  std::string operator()(const action::ToPeer& a) const {
    // The floats of the payload follow the message when it leaves; to decode it they must be there.
    std::vector<std::byte> bytes = a.bytes;
    std::uint64_t floats = 0;
    for (const worker::BufferRange& range : a.payload) floats += range.range.count;
    bytes.resize(bytes.size() + floats * sizeof(float));
    const auto decoded = worker::DecodePeerMessage(bytes);
    if (!decoded.ok()) return fmt::format(" -> {}: {}", a.peer.worker, decoded.error().message);
    const std::string words = std::visit(PeerWords{}, decoded->message);
    return words.empty() ? "" : fmt::format(" -> {}: {}", a.peer.worker, words);
  }
  std::string operator()(const action::Fetch& a) const {
    return fmt::format(" <- {}: fetches {}", a.peer.worker, Describe(a.piece));
  }
  std::string operator()(const action::GiveUpFetch&) const { return ": gives up a fetch"; }
  std::string operator()(const action::ConnectPeer& a) const {
    return fmt::format(": connects to {}", a.info.member.worker);
  }
  std::string operator()(const action::MapPeer& a) const {
    return fmt::format(": maps the memory of {}", a.info.member.worker);
  }
  std::string operator()(const action::ClosePeer& a) const {
    return fmt::format(": closes the connection to {} ({})", a.peer.worker, a.reason);
  }
  std::string operator()(const action::StartWork& a) const {
    return fmt::format(": begins its units of round {}{}", a.round,
                       a.on_copy ? ", on a copy of the parameters" : "");
  }
  std::string operator()(const action::VoidWork&) const {
    return ": lets go of its units, what it has computed is void";
  }
  std::string operator()(const action::Reduce& a) const {
    return fmt::format(": sums {} of round {} attempt {} out of {} parts", Slices(a), a.round,
                       a.attempt, a.inputs.size());
  }
  std::string operator()(const action::CopySums&) const {
    return ": copies sums out of mapped memory";
  }
  std::string operator()(const action::Apply& a) const {
    return fmt::format(": updates its parameters with round {} attempt {}", a.round, a.attempt);
  }
  std::string operator()(const action::CopyState& a) const {
    return fmt::format(": copies bucket {} of its state for another", a.bucket);
  }
  std::string operator()(const action::TakeSnapshot& a) const {
    switch (a.kind) {
      case action::SnapshotKind::kEvaluation:
        return ": takes a snapshot for the evaluation";
      case action::SnapshotKind::kCheckpoint:
        return ": takes a snapshot for the checkpoint";
      case action::SnapshotKind::kCompute:
        return ": takes a copy to compute with";
    }
    return "";
  }
  std::string operator()(const action::DigestState&) const {
    return ": takes the digest of its parameters";
  }
  std::string operator()(const action::DigestReplica&) const {
    return ": takes the digest of all its state";
  }
  std::string operator()(const action::InitializeState& a) const {
    return a.parameters ? ": draws its parameters" : ": begins with the parameters that came";
  }
  std::string operator()(const action::GiveChunk& a) const {
    return fmt::format(" -> coordinator: Given {}: {} bytes at {}", a.giving, a.bytes, a.offset);
  }
  std::string operator()(const action::UploadChunk& a) const {
    return fmt::format(" -> coordinator: StateChunk after round {}: tensor {} at {}, {} bytes{}",
                       a.round, a.tensor, a.offset, a.bytes, a.last ? ", the last" : "");
  }
  std::string operator()(const action::Exit& a) const {
    return fmt::format(": ends ({})", a.reason);
  }
  std::string operator()(const action::Log& a) const { return fmt::format(": logs: {}", a.line); }
  template <class Other>
  std::string operator()(const Other&) const {
    return "";
  }

  static std::string Slices(const action::Reduce& a) {
    std::uint64_t floats = 0;
    for (const worker::Slice& slice : a.slices) floats += slice.range.count;
    return fmt::format("{} values", floats);
  }
};

template <class Words, class Input>
std::string WithWorker(const MemberId& worker, const Input& input, const char* between) {
  const std::string words = std::visit(Words{}, input);
  return words.empty() ? "" : fmt::format("{}{}{}", worker.worker, between, words);
}

}  // namespace

std::string Describe(const MemberId& worker, const worker::Event& event) {
  return WithWorker<EventWords>(worker, event, ": ");
}

std::string Describe(const MemberId& worker, const worker::Action& action) {
  return WithWorker<ActionWords>(worker, action, "");
}

}  // namespace lockstep::simulate
