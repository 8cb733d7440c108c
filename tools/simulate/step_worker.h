// A worker that consists of the real core; this is its shell. It carries fetches and messages to
// the other StepWorkers of its cluster, gives operations and units their time, and leaves the bytes
// to its Numbers.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/simulate/compute_model.h"
#include "tools/simulate/computed_run.h"
#include "tools/simulate/data_network.h"
#include "tools/simulate/known_costs.h"
#include "tools/simulate/numbers.h"
#include "tools/simulate/simulation.h"
#include "worker/core/step_machine.h"

namespace lockstep::simulate {

class StepWorker;

// A connection between two workers. Each direction keeps its order.
struct Connection {
  std::array<StepWorker*, 2> ends{};
  std::array<Time, 2> last_arrival{};  // at each end
  std::array<bool, 2> down{};          // the end knows
};

// The workers of a simulation, and their shared state.
class Cluster {
 public:
  struct Options {
    worker::MachineConfig machine;  // for all; self and term are set for each
    std::uint32_t hosts = 0;        // workers of one host map each other; 0: no mapping
    std::uint64_t train_samples = 700;
    std::uint64_t test_samples = 0;
    bool ucx = false;  // offered beside TCP
    // False: a worker streams a single number for a checkpoint, where nothing reads it.
    bool whole_checkpoints = true;
    double measured_gb_per_second = 0;  // in the workers' reports of their paths; 0: none
    bool own_parameters = false;        // msg::Ready::own_parameters
    bool weighed = false;               // runs count for DivisorOf, not for their samples
    bool validates = false;             // some programs take longer between epochs than rounds last
    std::shared_ptr<KnownCosts> costs;  // that programs tell; null: they tell none
  };
  using MakeNumbers = std::function<std::shared_ptr<Numbers>(const MemberId& self)>;

  Cluster(Options o, worker::Layout l, DataNetwork* n, ComputeModel* c, MakeNumbers m)
      : options(std::move(o)),
        layout(std::move(l)),
        network(n),
        compute(c),
        make_numbers(std::move(m)) {}

  // Takes kCutLink, kAway and the hangs.
  void Inject(const Fault& fault);
  // The wait of each present worker; for people.
  std::string Describe() const;

  const Options options;
  const worker::Layout layout;
  DataNetwork* const network;
  ComputeModel* const compute;
  const MakeNumbers make_numbers;
  std::map<MemberId, StepWorker*> alive;
  std::set<std::uint32_t> flipped;              // machines (kFlip)
  std::map<std::string, std::uint64_t> counts;  // actions by name, for tests
  // Called with each event that a worker's core gets and, after its step, with each action before
  // it is carried out; for transcripts.
  std::function<void(const MemberId& worker, const worker::Event&)> on_event;
  std::function<void(const MemberId& worker, const worker::Action&)> on_action;
};

class StepWorker final : public WorkerModel {
 public:
  StepWorker(WorkerHost* host, Cluster* cluster) : host_(host), cluster_(cluster) {}

  void OnConnected() override;
  void OnMessage(const msg::ToWorker& message) override;
  // Its connections end.
  void OnKilled() override;
  bool OnCoordinatorGone(const std::string& reason) override;

  std::uint32_t machine() const { return host_->machine(); }
  worker::StepMachine::View view() const { return machine_->view(); }
  // That it has said to hold when it came to its coordinator.
  const std::vector<std::uint32_t>& held_shards() const { return held_shards_; }
  // Cuts the connection; both ends learn it.
  void Cut(const MemberId& peer);
  // No operation, or no unit, ends before that.
  void HangReduction(Duration length);
  void HangCompute(Duration length);
  void GoAway(Duration length);

 private:
  struct FetchState {
    worker::action::Fetch order;
    std::shared_ptr<Connection> connection;
    bool begun = false;  // its bytes are on their way
    bool given_up = false;
    bool done = false;
    std::optional<std::uint64_t> cookie;  // served: the server's cookie
  };
  using Fetch = std::shared_ptr<FetchState>;

  // A process takes these along from the coordinator before.
  struct Before {
    std::shared_ptr<Numbers> numbers;
    std::optional<HeldParameters> held;
    std::vector<std::uint32_t> shards;
    bool whole = true;
    std::uint32_t next_generation = 1;
    worker::EpochsSeen epochs_seen;
  };
  void Begin(const msg::Welcome& welcome, const Before& before);
  std::string HostId() const;
  void Handle(const worker::Event& event);
  Duration Shortly();  // a short delay, for calls that must not be immediate
  // The peers with a transfer under way to here, where that counts (DataNetwork::Flows).
  std::vector<std::pair<MemberId, Time>> LastHeard() const;
  int EndOf(const Connection& c) const { return c.ends[0] == this ? 0 : 1; }
  // Runs at the other end, in order.
  void Carry(const std::shared_ptr<Connection>& c, std::uint64_t bytes,
             std::function<void(StepWorker*)> there);
  void Down(const std::shared_ptr<Connection>& c, const std::string& reason);
  void EndConnection(const std::shared_ptr<Connection>& c, const std::string& reason);
  void Connected(const std::shared_ptr<Connection>& c);
  void ServeFetch(const std::shared_ptr<Connection>& c, const Fetch& fetch);
  void FinishFetch(const Fetch& fetch, FetchStatus status);

  void Do(const worker::action::ToCoordinator& a);
  void Do(const worker::action::ToPeer& a);
  void Do(const worker::action::UseTransport&) {}
  void Do(const worker::action::ConnectPeer& a);
  void Do(const worker::action::MapPeer& a);
  void Do(const worker::action::UnmapPeer& a) { numbers_->Unmap(a.peer); }
  void Do(const worker::action::ClosePeer& a);
  void Do(const worker::action::Fetch& a);
  void Do(const worker::action::GiveUpFetch& a);
  void Do(const worker::action::StoreInline& a) { numbers_->StoreInline(a); }
  void Do(const worker::action::OpenBlock& a) { numbers_->OpenBlock(a.buffer, a.generation); }
  void Do(const worker::action::GiveBack& a) { numbers_->GiveBack(a); }
  void Do(const worker::action::StartWork& a);
  void TellCosts(Epoch epoch);
  void Do(const worker::action::WakeCompute&) { Compute(); }
  void Do(const worker::action::VoidWork& a);
  void Do(const worker::action::EvaluateChunk& a);
  void Do(const worker::action::EpochEnd& a);
  void Do(const worker::action::Reduce& a);
  void Do(const worker::action::CopySums& a);
  void Do(const worker::action::UpdateHeld& a);
  void Do(const worker::action::TakeParameters& a);
  void Do(const worker::action::DropHeldState& a) { numbers_->DropHeldState(a); }
  void Do(const worker::action::Apply& a);
  void Do(const worker::action::CopyState& a);
  void Do(const worker::action::TakeSnapshot& a);
  void Do(const worker::action::DigestState& a);
  void Do(const worker::action::DigestReplica& a);
  void Do(const worker::action::InitializeState& a) { numbers_->Initialize(a.parameters); }
  void Do(const worker::action::StoreState& a) {
    numbers_->StoreState(a.tensor, a.offset, a.bytes);
  }
  void Do(const worker::action::UploadChunk& a);
  void Do(const worker::action::GiveChunk& a);
  void Do(const worker::action::SetTimer& a);
  void Do(const worker::action::Slowdown&) {}
  void Do(const worker::action::Exit&) {}
  void Do(const worker::action::Orphaned&) { orphaned_ = true; }
  void Do(const worker::action::Detached& a);
  void Do(const worker::action::Log& a);

  void CheckMayChange() const;
  void Compute();
  void EndRun(std::uint64_t run);
  worker::event::UnitAudited Audited(const worker::UnitQueue::Take& take, const ComputedRun& run);
  void FinishRun(const worker::UnitQueue::Take& take, const ComputedRun& run);
  void Seal(const worker::UnitQueue::Take& take);
  // The reduction thread: one operation after the other, each a pass over so many bytes.
  template <class Operation>
  void Queue(const Operation& a, std::uint64_t floats);
  void RunNextOp();
  void EndOp();

  struct QueuedOp {
    Duration takes;
    std::function<worker::event::OpDone()> run;
  };

  WorkerHost* host_;
  Cluster* cluster_;
  MemberId self_;
  Term term_;
  std::vector<std::uint32_t> held_shards_;
  std::optional<worker::StepMachine> machine_;
  std::shared_ptr<Numbers> numbers_;
  std::map<MemberId, std::shared_ptr<Connection>> connections_;
  std::map<std::uint64_t, Fetch> fetches_;
  std::map<Connection*, std::vector<Fetch>> serving_;
  std::deque<QueuedOp> ops_;
  bool op_under_way_ = false;
  Time reduction_hangs_until_;
  Time compute_hangs_until_;
  Time away_until_;  // the latest one
  std::optional<worker::action::StartWork> work_;
  std::optional<Epoch> told_costs_;  // of this epoch and the next one
  bool in_run_ = false;              // in a run, or sealing
  bool between_epochs_ = false;      // the program looks at the parameters of an epoch's end
  std::uint64_t runs_ = 0;           // counts them
  worker::UnitQueue::Take computing_;
  std::optional<ComputedRun> run_;  // until it has ended; the run of computing_
  std::uint64_t timer_ = 0;
  bool in_step_ = false;
  bool dead_ = false;
  bool orphaned_ = false;                     // its coordinator is gone
  std::optional<msg::Welcome> next_welcome_;  // of the next one
  bool next_gone_ = false;                    // and it is gone as well
};

}  // namespace lockstep::simulate
