// Runs the real coordinator on virtual time against simulated worker processes: messages take time
// (in order on each connection), processes are stopped, killed and started again. WorkerModel has
// the worker's behaviour.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/messages.h"
#include "base/random.h"
#include "base/time.h"
#include "coordinator/core/coordinator.h"
#include "tools/simulate/event_queue.h"
#include "tools/simulate/fault.h"
#include "tools/simulate/job_files.h"

namespace lockstep::simulate {

class WorkerModel {
 public:
  virtual ~WorkerModel() = default;
  virtual void OnConnected() = 0;
  virtual void OnMessage(const msg::ToWorker& message) = 0;
  virtual void OnKilled() {}  // the process is dead from here on
  // Its connection to the coordinator has ended. False: so does the process. True: it has called
  // WorkerHost::LookForCoordinator.
  virtual bool OnCoordinatorGone(const std::string& reason) {
    (void)reason;
    return false;
  }
};

// The services for a simulated process.
class WorkerHost {
 public:
  virtual ~WorkerHost() = default;
  virtual void Send(msg::FromWorker message) = 0;
  // A large message, which is made when it is read: many of them under way take no memory.
  virtual void SendMade(std::function<msg::FromWorker()> make) = 0;
  // It runs later when the process is stopped then, and never when it is dead.
  virtual void At(Time time, Task task) = 0;
  void After(Duration delay, Task task) { At(now() + delay, std::move(task)); }
  // Runs in the other process, some time later; nothing happens when that incarnation is gone.
  virtual void AtPeer(const MemberId& peer, std::function<void(WorkerModel&)> action) = 0;
  virtual void SetSelf(const MemberId& self) = 0;  // from Welcome
  virtual RandomStream& random() = 0;              // of this process
  virtual Time now() const = 0;                    // by the machine's own clock
  // The time of the simulation, which is the same everywhere and which no process can know.
  virtual Time true_now() const { return now(); }
  virtual void AtTrue(Time time, Task task) { At(time, std::move(task)); }
  // The machine of the process; a process that is started again runs on the same one.
  virtual std::uint32_t machine() const = 0;
  virtual std::optional<WorkerId> wanted() const = 0;
  // WorkerModel::OnStart once there is one again. A host whose coordinator stays has none of this.
  virtual void LookForCoordinator() {}
  // The process goes on as `next`; the model before it stays where it is.
  virtual void GoOnAs(std::unique_ptr<WorkerModel> next) { (void)next; }
};

// The time of messages on the control plane.
struct ControlTiming {
  Duration latency = std::chrono::microseconds(50);
  Duration jitter = std::chrono::microseconds(400);  // up to so much more, evenly spread
  Duration coordinator_cost{};                       // of its one thread, for each message
};

// A checkpoint on the coordinator's disk.
struct SavedCheckpoint {
  coordinator::JobState state;
  std::vector<std::vector<std::byte>> tensors;
};

class Simulation {
 public:
  using Factory = std::function<std::unique_ptr<WorkerModel>(WorkerHost*)>;

  static constexpr Time kStart{std::chrono::seconds(1)};

  // The job starts at kStart; `start.started` is set.
  Simulation(coordinator::StartParameters start, std::uint64_t seed, ControlTiming timing,
             Factory factory);
  ~Simulation();

  // Adds a machine with a worker on it, numbered 0, 1, ...
  void AddWorker(Duration after);
  void AddFaults(const std::vector<Fault>& faults);
  // Faults whose moment has not come, or not often enough.
  std::vector<Fault> FaultsToCome() const;
  void StopJob(Duration after);  // Acts like SIGINT.
  // Adds a checkpoint that is on the coordinator's disk already, for StartParameters::resume.
  // Without it nobody is sent the state from which the job continues.
  void PutOnDisk(SavedCheckpoint saved) { disk_ = std::move(saved); }
  // Runs until the job has finished or `until`. False: it has not finished.
  bool Run(Time until);
  // Runs one event; false when there is none or the job has finished.
  bool RunNext();
  // The member's process had a fault: it was stopped, hung, or was cut off from the coordinator.
  bool Troubled(const MemberId& member) const;

  // From its start on, the job has a run directory within the folder (job_files.h).
  void KeepFiles(const std::filesystem::path& parent);
  // A change of its last line has taken the newest entry from the journal.
  bool journal_cut() const;

  const std::optional<SavedCheckpoint>& disk() const { return disk_; }
  const coordinator::JobResult* result() const { return result_ ? &*result_ : nullptr; }
  const coordinator::Coordinator& coordinator() const { return *coordinator_; }
  Time now() const { return queue_.now(); }
  EventQueue& queue() { return queue_; }
  // The number of events of the coordinator, and the real time that it took for them.
  std::uint64_t coordinator_steps() const { return coordinator_steps_; }
  Duration coordinator_time() const { return coordinator_time_; }

  // They are called about everything that happens, before it is carried out.
  struct Hooks {
    std::function<void(const coordinator::Event&)> on_event;  // of the coordinator
    // A message and its receivers; a copy for each receiver follows. Those that form a job of more
    // than kTellFormsUpTo workers are left out: all of them together name each pair.
    std::function<void(const coordinator::Send&)> on_send;
    std::function<void(const coordinator::Close&)> on_close;
    std::function<void(const std::shared_ptr<const coordinator::RoundRecord>&)> on_closed;
    std::function<void(const coordinator::EvaluationRecord&)> on_evaluated;
    std::function<void(const coordinator::JobState&)> on_checkpoint;
    std::function<void(const SavedCheckpoint&)> on_saved;  // it is on disk
    std::function<void(const SavedCheckpoint&)> on_resumed;
    std::function<void(const coordinator::LogLine&)> on_log;
    // The coordinator has died alone.
    std::function<void()> on_crashed;
    // The next one goes on from this state.
    std::function<void(const coordinator::JobState&)> on_taken_over;
    std::function<void(const Fault&)> on_fault;
    std::function<void()> after_step;  // of the coordinator, its actions carried out
  };
  static constexpr std::size_t kTellFormsUpTo = 64;
  Hooks hooks;

 private:
  class Process;            // process.h
  class CoordinatorDeaths;  // coordinator_deaths.h
  // The link between a machine and the coordinator.
  struct Link {
    Time out_held_until;
    Time in_held_until;
    Time slow_until;
    Duration slow_by{};
  };
  // It runs by its own rate from a point at which it showed `local`.
  struct Clock {
    Time from;
    Time local;
    double rate = 1;
    Time Show(Time t) const;
    Time When(Time shown) const;  // rounded up
  };
  // `make`: the event is made when it is handled.
  struct Arrived {
    coordinator::Event event;
    std::function<coordinator::Event()> make;
    coordinator::Event Take() { return make ? make() : std::move(event); }
  };
  struct Machine {
    Process* process = nullptr;  // the process that runs, or ran last
    std::uint64_t starts = 0;    // a delayed start holds when no later one came
    Link link;
    Clock clock;
  };

  void StartProcess(std::uint32_t machine, std::optional<WorkerId> wanted, Duration after);
  void Arrive(coordinator::Event event) { Arrive(Arrived{std::move(event), {}}); }
  void Arrive(Arrived arrived);
  void Serve();
  void Step(coordinator::Event event);
  void CarryOut(coordinator::Action& action);
  void Carry(const coordinator::Send& send);
  void Carry(const std::shared_ptr<const coordinator::SendForms>& forms);
  // The coordinator sees the end of its connection, `unseen` later than it could.
  void Kill(Process* process, bool restart, Duration unseen = {});
  void Inject(const Fault& fault);
  template <class Message>
  void Pass(const Message& message);
  void PassWords(const std::string& said);
  Process* Find(coordinator::ConnectionId connection);
  Duration Delay(RandomStream& random);
  Time OutArrival(std::uint32_t machine, RandomStream& random);
  Time InArrival(std::uint32_t machine, Time leaves, RandomStream& random);
  void StreamCheckpoint(const coordinator::StreamState& stream);
  void Save(const coordinator::SaveCheckpoint& save);
  // All that its process knew is lost.
  void ForgetCoordinator();
  // It has the journal, and the checkpoint.
  void StartNextCoordinator(const std::vector<coordinator::JournalEntry>& journal,
                            std::optional<coordinator::JobState> checkpoint);
  coordinator::ConnectionId NewConnection(Process* process);

  const ControlTiming timing_;
  const std::uint64_t seed_;
  Factory factory_;
  coordinator::StartParameters start_;
  EventQueue queue_;
  RandomStream random_;
  struct Waiting {
    Fault fault;
    std::uint32_t passed = 0;  // moments equal to its own
  };
  std::vector<Waiting> waiting_;
  std::unique_ptr<coordinator::Coordinator> coordinator_;
  std::deque<Arrived> inbox_;  // of the coordinator, while it is busy or stopped
  Time busy_until_;
  Time stopped_until_;
  bool serving_ = false;      // a look at the inbox is scheduled
  bool was_stopped_ = false;  // since the last look
  std::uint64_t timer_generation_ = 0;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<Process*> connections_;  // by ConnectionId, from 1
  std::vector<Machine> machines_;
  std::map<MemberId, Process*> members_;
  std::unique_ptr<CoordinatorDeaths> deaths_;
  std::unique_ptr<JobFiles> files_;              // null: what is on disk is in memory only
  std::vector<std::vector<std::byte>> writing_;  // a checkpoint that is not yet saved
  std::optional<SavedCheckpoint> disk_;
  std::map<coordinator::ConnectionId, std::uint64_t> streamed_;  // bytes of it
  Time saves_fail_until_;
  Time writes_fail_until_;
  bool write_failed_ = false;
  std::optional<coordinator::JobResult> result_;
  coordinator::Actions actions_;
  std::uint64_t coordinator_steps_ = 0;
  Duration coordinator_time_{};
};

}  // namespace lockstep::simulate
