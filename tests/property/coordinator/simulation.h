// Runs the real coordinator against simulated worker processes on virtual time: messages take
// random times (in order on each connection), processes are stopped, killed and started again. What
// a worker does is behind WorkerModel, so that another implementation can take the model's place.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <string>
#include <vector>

#include "base/messages.h"
#include "base/random.h"
#include "base/time.h"
#include "coordinator/coordinator.h"

namespace lockstep::coordinator {

class WorkerModel {
 public:
  virtual ~WorkerModel() = default;
  virtual void OnStart() = 0;  // the connection is made
  virtual void OnMessage(const ToWorker& message) = 0;
  virtual void OnKilled() {}  // the process is dead from here on
};

// What a simulated process may do.
class WorkerHost {
 public:
  virtual ~WorkerHost() = default;
  virtual void Send(FromWorker message) = 0;
  virtual void After(Duration delay,
                     std::function<void()> action) = 0;  // void when the process dies
  // Runs in the other process, some time later; nothing happens when that incarnation is not there.
  virtual void AtPeer(const MemberId& peer, std::function<void(WorkerModel&)> action) = 0;
  virtual void SetSelf(const MemberId& self) = 0;  // from Welcome
  virtual RandomStream& random() = 0;
  virtual Time now() const = 0;
  virtual std::uint32_t slot_hint() const = 0;
  virtual std::optional<WorkerId> wanted() const = 0;
};

struct Faults {
  bool kills = false;
  bool stops = false;
  bool coordinator_stops = false;
  Time until;  // none begins after this
};

class Simulation {
 public:
  using Factory = std::function<std::unique_ptr<WorkerModel>(WorkerHost*)>;

  Simulation(StartParameters start, std::uint64_t seed, Factory factory);
  ~Simulation();

  void AddWorker(std::optional<WorkerId> wanted, Duration after);
  void SetFaults(Faults faults);
  void StopJob(Duration after);  // SIGINT
  // Until the job has finished or `until`. False: it has not finished.
  bool Run(Time until);

  const JobResult* result() const { return result_ ? &*result_ : nullptr; }
  const std::vector<std::shared_ptr<const RoundRecord>>& records() const { return records_; }
  const std::vector<EvaluationRecord>& evaluations() const { return evaluations_; }
  const std::vector<JobState>& checkpoints() const { return checkpoints_; }
  const std::vector<std::string>& log() const { return log_; }
  const Coordinator& coordinator() const { return *coordinator_; }
  Time now() const { return now_; }

  // Asked about each message before it is sent, with its receivers.
  std::function<void(const ToWorker&)> on_send;

 private:
  class Process;
  void At(Time time, std::function<void()> action);
  void Step(Event event);
  void CarryOut(Action action);
  void Kill(Process* process, bool restart);
  void NextFault();
  Process* Find(ConnectionId connection);
  Duration Delay() { return std::chrono::microseconds(50 + random_.NextBelow(400)); }

  struct Scheduled {
    Time time;
    std::uint64_t order;
    std::function<void()> action;
    bool operator<(const Scheduled& other) const {
      return std::tie(time, order) > std::tie(other.time, other.order);
    }
  };

  Factory factory_;
  RandomStream random_;
  std::unique_ptr<Coordinator> coordinator_;
  Time now_;
  Time coordinator_stopped_until_;
  std::vector<std::function<void()>> coordinator_backlog_;
  std::uint64_t order_ = 0;
  std::uint64_t timer_generation_ = 0;
  std::uint64_t connections_ = 0;
  std::priority_queue<Scheduled> queue_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::map<MemberId, Process*> members_;
  Faults faults_;
  std::optional<JobResult> result_;
  std::vector<std::shared_ptr<const RoundRecord>> records_;
  std::vector<EvaluationRecord> evaluations_;
  std::vector<JobState> checkpoints_;
  std::vector<std::string> log_;
};

}  // namespace lockstep::coordinator
