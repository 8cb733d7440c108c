// Step machines with real memory, run against each other in one process on virtual time. A
// SimWorker is the shell: it computes a trivial model, carries fetches and messages to the other
// SimWorkers of its World, and carries out reductions and updates. Where it gets its time, its
// randomness and its coordinator is behind Host.
//
// The World knows what each round must come to: it sums the sealed contributions of a commit by
// itself, and compares what each worker has after each update bit by bit.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/random.h"
#include "tests/property/worker/sim_memory.h"
#include "worker/step_machine.h"

namespace lockstep::worker::sim {

class SimWorker;

class Host {
 public:
  virtual ~Host() = default;
  virtual void Send(FromWorker message) = 0;
  // Runs in this process; later when it is stopped then, never when it is dead.
  virtual void After(Duration delay, std::function<void()> action) = 0;
  virtual RandomStream& random() = 0;
  virtual Time now() const = 0;
};

struct WorldOptions {
  std::vector<FloatRange> blocks;
  std::uint64_t bucket_bytes = 8192;
  MachineConfig machine;    // of all; self and term are set for each
  std::uint32_t hosts = 0;  // workers of one host map each other; 0: no mapping
  Duration unit_time = std::chrono::microseconds(800);
  std::set<std::uint32_t> slow;  // worker ids
  double slow_factor = 6;
};

// A connection between two workers. Each direction keeps its order.
struct Connection {
  std::array<SimWorker*, 2> ends{};
  std::array<Time, 2> last_arrival{};  // at each end
  std::array<bool, 2> down{};          // the end knows
};

class World {
 public:
  explicit World(WorldOptions o);

  // What the coordinator commits, so that results can be compared.
  void OnCommit(const Commit& commit);
  // A worker has sealed a part.
  void OnSealed(const MemberId& member, RoundId round, PartIndex part, std::vector<float> gradient);
  // It has done this update and has this state now. Empty, or what is wrong.
  std::string CheckApplied(RoundId round, Attempt attempt, const State& state);
  std::string CheckLevel(RoundId next, const State& state);

  const WorldOptions options;
  const Layout layout;
  std::map<MemberId, SimWorker*> alive;
  std::vector<std::string> errors;
  std::uint64_t applied = 0;                    // updates compared
  std::uint64_t caught_up = 0;                  // states compared that were copied
  std::uint64_t fetched = 0;                    // pieces
  std::uint64_t inlined = 0;                    // pieces
  std::uint64_t read_in_place = 0;              // ranges of mapped blocks
  std::map<std::string, std::uint64_t> counts;  // messages and actions by name, for tests

 private:
  struct Truth {
    Attempt attempt;
    State state;
  };
  std::optional<State> Compute(const Commit& commit);

  RoundId oldest_;  // that is still known
  std::map<std::pair<RoundId, Attempt>, Commit> commits_;
  std::map<std::tuple<MemberId, RoundId, PartIndex>, std::vector<float>> sealed_;
  std::map<RoundId, Truth> truth_;  // after the round
};

class SimWorker {
 public:
  SimWorker(World* world, Host* host, std::string host_id)
      : world_(world), host_(host), host_id_(std::move(host_id)) {}

  // Of the coordinator. Welcome makes the machine; all others go to it.
  void OnMessage(const ToWorker& message);
  // The process is dead: its connections end.
  void Kill();

  const MemberId& self() const { return self_; }
  StepMachine& machine() { return *machine_; }
  Memory& memory() { return *memory_; }
  bool exited() const { return exited_; }

 private:
  friend class World;
  struct FetchState {
    action::Fetch order;
    std::shared_ptr<Connection> connection;
    bool given_up = false;
    bool done = false;
    std::optional<std::uint64_t> cookie;  // served: of the server
  };
  using Fetch = std::shared_ptr<FetchState>;

  void Handle(const Event& event);
  Duration Delay();
  int EndOf(const Connection& c) const { return c.ends[0] == this ? 0 : 1; }
  // Runs at the other end, in order.
  void Carry(const std::shared_ptr<Connection>& c, std::function<void(SimWorker*)> there);
  void Down(const std::shared_ptr<Connection>& c, const std::string& reason);
  void EndConnection(const std::shared_ptr<Connection>& c, const std::string& reason);
  void Connected(const std::shared_ptr<Connection>& c);
  void ServeFetch(const std::shared_ptr<Connection>& c, const Fetch& fetch);
  void FinishFetch(const Fetch& fetch, event::FetchStatus status);

  void Do(const action::ToCoordinator& a);
  void Do(const action::ToPeer& a);
  void Do(const action::UseTransport&) {}
  void Do(const action::ConnectPeer& a);
  void Do(const action::MapPeer& a);
  void Do(const action::UnmapPeer& a) { mapped_.erase(a.peer); }
  void Do(const action::ClosePeer& a);
  void Do(const action::Fetch& a);
  void Do(const action::GiveUpFetch& a);
  void Do(const action::StoreInline& a);
  void Do(const action::OpenBlock& a) { memory_->GenerationOf(a.buffer) = a.generation; }
  void Do(const action::StartWork& a);
  void Do(const action::WakeCompute&) { Compute(); }
  void Do(const action::VoidWork&) {}
  void Do(const action::EvaluateChunk& a);
  void Do(const action::Reduce& a);
  void Do(const action::CopySums& a);
  void Do(const action::Apply& a);
  void Do(const action::CopyState& a);
  void Do(const action::TakeSnapshot& a);
  void Do(const action::DigestState& a);
  void Do(const action::InitializeState&) { memory_->state = InitialState(world_->layout); }
  void Do(const action::StoreState&) {}
  void Do(const action::UploadChunk& a);
  void Do(const action::SetTimer& a);
  void Do(const action::Slowdown&) {}
  void Do(const action::Exit&) { exited_ = true; }
  void Do(const action::Log& a);

  void Compute();
  void FinishUnit(const UnitQueue::Take& take, std::int64_t start_ns,
                  const std::vector<float>& parameters);
  void Seal(const UnitQueue::Take& take);
  // The reduction thread: one operation after the other.
  void Queue(std::uint64_t op, std::function<void(event::OpDone*)> run);
  void RunNextOp();
  // Reads a range; false when it is torn.
  bool Read(const Source& source, const FloatRange& range, std::vector<float>* to);

  World* world_;
  Host* host_;
  std::string host_id_;
  MemberId self_;
  std::optional<StepMachine> machine_;
  std::shared_ptr<Memory> memory_;
  std::map<MemberId, std::shared_ptr<Connection>> connections_;
  std::map<MemberId, std::shared_ptr<Memory>> mapped_;
  std::map<std::uint64_t, Fetch> fetches_;
  std::map<Connection*, std::vector<Fetch>> serving_;
  std::deque<std::pair<std::uint64_t, std::function<void(event::OpDone*)>>> ops_;
  bool op_under_way_ = false;
  std::optional<action::StartWork> work_;
  bool in_unit_ = false;
  std::array<bool, kMaxParts> part_begun_{};
  std::uint64_t timer_ = 0;
  bool in_step_ = false;
  bool dead_ = false;
  bool exited_ = false;
};

}  // namespace lockstep::worker::sim
