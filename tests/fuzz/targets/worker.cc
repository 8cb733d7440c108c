// A worker's step machine behind both codecs: its coordinator and its peers say anything, its shell
// does what the actions ask for. Every action must stay within the memory that there is.
#include <deque>
#include <set>

#include "base/check.h"
#include "tests/fuzz/target.h"
#include "transport/control/codec.h"
#include "worker/core/peer_messages.h"
#include "worker/core/step_machine.h"

namespace lockstep::fuzz {
namespace {

namespace control = transport::control;
namespace action = worker::action;
namespace event = worker::event;
using worker::BufferKind;
using worker::Layout;

const MemberId kSelf{WorkerId(0), Incarnation(1)};
const MemberId kPeers[] = {{WorkerId(1), Incarnation(1)}, {WorkerId(2), Incarnation(1)}};
constexpr std::uint64_t kFloats = 4096;
constexpr std::uint32_t kStateTensors = 1;
constexpr int kMostSteps = 200;

enum Step : std::uint8_t {
  kFromCoordinator,  // or one of the next two
  kFromPeer = 3,     // or the next
  kPeerUp = 5,
  kPeerDown,
  kMapped,
  kCompute,
  kOpDone,
  kFetchDone,
  kAskPiece,
  kServed,
  kTime,
  kShell,
  kNothing,
};

class Shell {
 public:
  Shell() : machine_(Config(), Layout({{0, kFloats}}, 4 * kFloats)) {}

  bool exited() const { return exited_; }

  void Do(const worker::Event& event) {
    now_ += std::chrono::milliseconds(1);
    const worker::Actions actions = machine_.Step(now_, event);
    machine_.CheckInvariants();
    for (const worker::Action& a : actions) {
      std::visit([this](const auto& one) { CarryOut(one); }, a);
    }
  }

  // False: bytes that are no message.
  bool Take(std::uint8_t step, const MemberId& peer, Input& input) {
    if (step < kFromPeer) {
      auto message = control::DecodeToWorker(std::as_bytes(input.TakeChunk()));
      if (!message) return false;
      // The session keeps these to itself.
      if (std::holds_alternative<msg::Welcome>(*message) ||
          std::holds_alternative<msg::Refuse>(*message)) {
        return true;
      }
      Do(event::FromCoordinator{*std::move(message)});
      return true;
    }
    if (step < kPeerUp) {
      const Bytes bytes = input.TakeChunk();
      if (up_.contains(peer)) Do(event::FromPeer{peer, std::as_bytes(bytes)});
      return true;
    }
    // Read in any case, so that what the next bytes mean does not depend on the state.
    const std::uint8_t how = input.Byte();
    switch (step) {
      case kPeerUp:
        if (up_.insert(peer).second) Do(event::PeerUp{peer, "tcp"});
        break;
      case kPeerDown:
        if (up_.contains(peer)) {
          Down(peer);
        } else {
          Do(event::ConnectFailed{peer, "refused"});
        }
        break;
      case kMapped:
        if (mapping_.erase(peer) > 0) {
          Do(event::PeerMapped{peer, how % 2 == 0, "no memory"});
        }
        break;
      case kCompute:
        Compute();
        break;
      case kOpDone:
        if (!ops_.empty()) {
          const std::uint64_t op = ops_.front();
          ops_.pop_front();
          Do(event::OpDone{op, (how & 1) != 0, how, "digest"});
        }
        break;
      case kFetchDone:
        FinishFetch(static_cast<FetchStatus>(how % 3));
        break;
      case kAskPiece:
        Ask(peer, input);
        break;
      case kServed:
        if (!served_.empty()) {
          const std::uint64_t cookie = served_.front();
          served_.pop_front();
          Do(event::Served{cookie});
        }
        break;
      case kTime:
        now_ += std::chrono::milliseconds(100) * how;
        Do(event::TimerDue{});
        break;
      case kShell:
        if (gives_ > 0) {
          --gives_;
          Do(event::ChunkGiven{});
        } else if (uploads_ > 0) {
          --uploads_;
          Do(event::ChunkUploaded{});
        } else if (evaluating_) {
          const auto chunk = *evaluating_;
          evaluating_.reset();
          Do(event::ChunkEvaluated{chunk.evaluation, chunk.range, 1.0, chunk.range.size() / 2});
        } else if (how == 255) {
          Do(event::LeaveAsked{"asked"});
        }
        break;
      default:
        break;
    }
    return true;
  }

 private:
  static worker::MachineConfig Config() {
    worker::MachineConfig config;
    config.self = kSelf;
    config.term = Term(1);
    config.host_id = "host";
    config.state_tensors = kStateTensors;
    config.piece_bytes = 4096;
    config.queue_capacity = 64;
    return config;
  }

  void Down(const MemberId& peer) {
    if (up_.erase(peer) == 0) return;
    // What was asked of it comes back first.
    for (auto it = fetches_.begin(); it != fetches_.end();) {
      if (it->peer == peer) {
        const std::uint64_t fetch = it->fetch;
        it = fetches_.erase(it);
        pending_.push_back(event::FetchDone{fetch, FetchStatus::kPeerDown});
      } else {
        ++it;
      }
    }
    while (!pending_.empty()) {
      const auto done = pending_.front();
      pending_.pop_front();
      Do(done);
    }
    Do(event::PeerDown{peer, "closed"});
  }

  void Compute() {
    if (!work_) return;
    const auto take = machine_.queue().TakeNext();
    if (take.kind == worker::UnitQueue::TakeKind::kNone) return;
    if (take.kind == worker::UnitQueue::TakeKind::kAudit) {
      Do(event::UnitAudited{take.work, machine_.queue().UnitsOf(take).front(), false, {}});
      return;
    }
    bool seal = take.kind == worker::UnitQueue::TakeKind::kSeal;
    if (take.kind == worker::UnitQueue::TakeKind::kRun) {
      event::RunDone done{take.work, take.part, 0, 1.0, {}};
      for (std::uint32_t i = 0; i < take.count; ++i) {
        done.units.push_back({machine_.queue().UnitAt(take.position + i), 0, 1});
        done.samples += done.units.back().unit.range.size();
      }
      seal = machine_.queue().BeginSeal();
      Do(done);
    }
    if (seal) {
      Do(event::PartSealed{take.work, take.part, 2});
    }
  }

  void FinishFetch(FetchStatus status) {
    if (fetches_.empty()) return;
    const std::uint64_t fetch = fetches_.front().fetch;
    if (given_up_.erase(fetch) > 0) {
      status = FetchStatus::kGivenUp;
    } else if (status == FetchStatus::kGivenUp) {
      status = FetchStatus::kOk;
    }
    fetches_.pop_front();
    Do(event::FetchDone{fetch, status});
  }

  void Ask(const MemberId& peer, Input& input) {
    PieceName piece;
    piece.kind = input.Byte() % 5;
    piece.attempt = input.Byte();
    piece.round = input.Byte();
    piece.owner = input.Byte();
    piece.part = input.Byte() % 4;
    piece.offset = std::uint64_t{input.Word()} * (input.Byte() == 255 ? 1ull << 48 : 4);
    piece.bytes = std::uint64_t{input.Word()} * (input.Byte() == 255 ? 1ull << 48 : 4);
    if (!up_.contains(peer)) return;
    const worker::Serve serve = machine_.OnPieceAsked(peer, piece);
    if (!serve.have) return;
    Within(serve.from);
    LOCKSTEP_CHECK(serve.from.range.count * sizeof(float) == piece.bytes);
    served_.push_back(serve.cookie);
  }

  std::uint64_t SizeOf(const worker::BufferId& buffer) const {
    const Layout& layout = machine_.layout();
    switch (buffer.kind) {
      case BufferKind::kContribution:
        LOCKSTEP_CHECK(buffer.index < worker::kContributionBuffers);
        return kFloats;
      case BufferKind::kSum:
      case BufferKind::kTaken:
        LOCKSTEP_CHECK(buffer.index < worker::kSumBuffers);
        return layout.sum_floats();
      case BufferKind::kStaging:
        LOCKSTEP_CHECK(buffer.index <= worker::kPartialStaging);
        return kFloats;
      case BufferKind::kState:
        LOCKSTEP_CHECK(buffer.index <= kStateTensors);
        return kFloats;
      case BufferKind::kStateOut:
        LOCKSTEP_CHECK(buffer.index < worker::kStateOutBuffers);
        return (1 + kStateTensors) * layout.largest_copy();
    }
    LOCKSTEP_CHECK(false, "a buffer of no kind");
    return 0;
  }
  void Within(const worker::BufferRange& place) const { Within(place.buffer, place.range); }
  void Within(const worker::BufferId& buffer, const worker::FloatRange& range) const {
    const std::uint64_t size = SizeOf(buffer);
    LOCKSTEP_CHECK(range.first <= size && range.count <= size - range.first,
                   "{} floats from {} on of {}", range.count, range.first, size);
  }
  void Within(const std::vector<worker::action::SourceRange>& places) const {
    for (const auto& place : places) Within(place.source.buffer, place.range);
  }

  template <class Operation>
  void Begin(const Operation& operation) {
    ops_.push_back(operation.op);
  }

  void CarryOut(const action::ToCoordinator& a) {
    const std::string bytes = control::Encode(a.message);
    const auto decoded = control::DecodeFromWorker(std::as_bytes(std::span(bytes)));
    LOCKSTEP_CHECK(decoded.ok(), "{}", decoded.ok() ? "" : decoded.error().message);
  }
  void CarryOut(const action::ToPeer& a) {
    for (const auto& place : a.payload) Within(place);
  }
  void CarryOut(const action::MapPeer& a) { mapping_.insert(a.info.member); }
  void CarryOut(const action::UnmapPeer& a) { mapping_.erase(a.peer); }
  void CarryOut(const action::ClosePeer& a) { closing_.push_back(a.peer); }
  void CarryOut(const action::Fetch& a) {
    Within(a.to);
    LOCKSTEP_CHECK(a.to.range.count * sizeof(float) == a.piece.bytes);
    fetches_.push_back(a);
  }
  void CarryOut(const action::GiveUpFetch& a) { given_up_.insert(a.fetch); }
  void CarryOut(const action::StoreInline& a) {
    Within(a.to);
    LOCKSTEP_CHECK(a.bytes.size() == a.to.range.count * sizeof(float));
  }
  void CarryOut(const action::OpenBlock& a) { SizeOf(a.buffer); }
  void CarryOut(const action::GiveBack& a) {
    SizeOf(a.buffer);
    for (const worker::FloatRange& range : a.kept) Within({a.buffer, range});
  }
  void CarryOut(const action::StartWork& a) {
    for (const auto& part : a.parts) SizeOf(part);
    work_ = a.work;
  }
  void CarryOut(const action::EvaluateChunk& a) { evaluating_ = a; }
  void CarryOut(const action::Reduce& a) {
    SizeOf(a.out);
    for (const auto& input : a.inputs) SizeOf(input.source.buffer);
    for (const worker::Slice& slice : a.slices) Within(a.out, slice.range);
    Begin(a);
  }
  void CarryOut(const action::CopySums& a) {
    Within(a.from);
    Begin(a);
  }
  void CarryOut(const action::Apply& a) {
    Within(a.slices);
    Within(a.norms);
    LOCKSTEP_CHECK(a.digest_bucket < machine_.layout().bucket_count());
    Begin(a);
  }
  void CarryOut(const action::CopyState& a) {
    SizeOf(a.to);
    LOCKSTEP_CHECK(a.bucket < machine_.layout().bucket_count());
    Begin(a);
  }
  void CarryOut(const action::TakeSnapshot& a) { Begin(a); }
  void CarryOut(const action::DigestState& a) { Begin(a); }
  void CarryOut(const action::DigestReplica& a) { Begin(a); }
  void CarryOut(const action::StoreState& a) {
    constexpr std::uint64_t kSize = kFloats * sizeof(float);
    LOCKSTEP_CHECK(a.tensor <= kStateTensors, "tensor {}", a.tensor);
    LOCKSTEP_CHECK(a.offset <= kSize && a.bytes.size() <= kSize - a.offset, "{} bytes at {}",
                   a.bytes.size(), a.offset);
  }
  void CarryOut(const action::UploadChunk& a) {
    constexpr std::uint64_t kSize = kFloats * sizeof(float);
    LOCKSTEP_CHECK(a.tensor <= kStateTensors && a.offset <= kSize && a.bytes <= kSize - a.offset);
    ++uploads_;
  }
  void CarryOut(const action::GiveChunk& a) {
    constexpr std::uint64_t kSize = kFloats * sizeof(float);
    LOCKSTEP_CHECK(a.offset <= kSize && a.bytes <= kSize - a.offset);
    ++gives_;
  }
  void CarryOut(const action::Exit&) { exited_ = true; }
  template <class Other>
  void CarryOut(const Other&) {}

 public:
  // What the machine wanted closed is closed between two steps.
  void CloseAsked() {
    while (!closing_.empty() && !exited_) {
      const MemberId peer = closing_.front();
      closing_.pop_front();
      Down(peer);
    }
  }

 private:
  worker::StepMachine machine_;
  Time now_{std::chrono::seconds(1)};
  std::set<MemberId> up_;
  std::set<MemberId> mapping_;
  std::deque<MemberId> closing_;
  std::deque<action::Fetch> fetches_;
  std::set<std::uint64_t> given_up_;
  std::deque<event::FetchDone> pending_;
  std::deque<std::uint64_t> ops_;
  std::deque<std::uint64_t> served_;
  std::optional<std::uint32_t> work_;
  std::optional<action::EvaluateChunk> evaluating_;
  int uploads_ = 0;
  int gives_ = 0;
  bool exited_ = false;
};

Plan MakePlan(std::uint64_t round) {
  Plan plan;
  plan.round = RoundId(round);
  plan.owners = {1, {{kSelf, 1}, {kPeers[0], 1}}};
  plan.members = {kSelf, kPeers[0]};
  plan.assignments = {{kSelf, {{UnitIndex(0), {0, 4}}, {UnitIndex(1), {4, 8}}}}};
  return plan;
}

template <std::size_t... I>
std::vector<std::string> OneOfEach(std::index_sequence<I...>) {
  std::vector<std::string> messages;
  const auto add = [&messages](const msg::ToWorker& message) {
    const std::string bytes = control::Encode(message);
    if (control::DecodeToWorker(std::as_bytes(std::span(bytes)))) messages.push_back(bytes);
  };
  (add(std::variant_alternative_t<I, msg::ToWorker>{}), ...);
  return messages;
}

}  // namespace

// Steps, each a byte of what and which peer, and a message as a chunk or a byte of how.
bool Run(Bytes bytes) {
  Input input(bytes);
  Shell shell;
  bool all_taken = true;
  for (int step = 0; step < kMostSteps && !input.empty() && !shell.exited(); ++step) {
    const std::uint8_t what = input.Byte();
    all_taken &= shell.Take(what & 15, kPeers[(what >> 4) % std::size(kPeers)], input);
    shell.CloseAsked();
  }
  return all_taken;
}

std::vector<std::string> Seeds() {
  const auto head = [](std::uint8_t what) { return std::string(1, static_cast<char>(what)); };
  const auto step = [&](std::uint8_t what) { return head(what) + '\0'; };
  const auto tell = [&](const msg::ToWorker& message) {
    return head(kFromCoordinator) + Chunk(control::Encode(message));
  };
  const auto say = [&](const worker::PeerMessage& message) {
    const auto bytes = worker::EncodePeerMessage(message);
    return head(kFromPeer) + Chunk({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  };
  msg::Form form;
  form.formation = 1;
  form.transport = "tcp";
  form.connect_to = {{kPeers[0], "address", "", "elsewhere"}};
  const std::string formed = tell(form) + step(kPeerUp) + say(worker::MapState{false});
  const std::string started = formed + tell(msg::Start{StateSource::kSeed, MakePlan(0), 0});
  const std::string computed = started + step(kCompute) + step(kCompute) + step(kCompute);
  msg::Commit commit;
  commit.term = Term(1);
  commit.round = RoundId(0);
  commit.update = 1;
  commit.steps = 1;
  commit.parts = {{kSelf, PartIndex(0), 1.0f, 8}, {kPeers[0], PartIndex(0), 1.0f, 8}};
  commit.owners = MakePlan(0).owners;
  commit.members = {kSelf, kPeers[0]};
  commit.next = MakePlan(1);
  worker::PartReady ready;
  ready.buckets = 1;
  ready.sealed = true;
  ready.tag = 1;
  worker::SumReady sum;
  sum.term = Term(1);
  sum.map_version = 1;
  std::string drained;
  for (int i = 0; i < 4; ++i) drained += step(kFetchDone);
  for (int i = 0; i < 4; ++i) drained += step(kOpDone);
  std::vector<std::string> seeds = {
      formed, started, computed, computed + say(ready) + drained + tell(commit) + drained,
      computed + say(ready) + drained + tell(commit) + drained + say(sum) + drained + drained +
          step(kCompute) + step(kCompute)};
  msg::StateChunk chunk;
  chunk.bytes.resize(64);
  seeds.push_back(formed + tell(chunk) +
                  tell(msg::Start{StateSource::kCheckpoint, MakePlan(0), 0}));
  seeds.push_back(
      formed + tell(chunk) + tell(msg::GiveParameters{1, 64}) + tell(msg::GiveParameters{2, 8}) +
      tell(msg::Start{StateSource::kGiven, MakePlan(0), 0}) + tell(msg::GiveParameters{3, 32}));
  for (const std::string& message :
       OneOfEach(std::make_index_sequence<std::variant_size_v<msg::ToWorker>>())) {
    seeds.push_back(computed + head(kFromCoordinator) + Chunk(message) + drained);
  }
  return seeds;
}

}  // namespace lockstep::fuzz
