// A simulated process: its connection to the coordinator, its machine's clock, and its life. It may
// be stopped, and later does what it missed; once it is dead it does nothing any more.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/random.h"
#include "base/time.h"
#include "coordinator/core/coordinator.h"
#include "tools/simulate/event_queue.h"
#include "tools/simulate/simulation.h"

namespace lockstep::simulate {

class Simulation::Process final : public WorkerHost {
 public:
  // `number`: of all processes so far, for its random numbers.
  Process(Simulation* simulation, std::uint32_t machine, std::uint64_t number,
          std::optional<WorkerId> wanted);
  void Start();

  void Send(msg::FromWorker message) override;
  void SendMade(std::function<msg::FromWorker()> make) override;
  void At(Time time, Task task) override;
  void AtTrue(Time time, Task task) override;
  void AtPeer(const MemberId& peer, std::function<void(WorkerModel&)> action) override;
  void SetSelf(const MemberId& id) override;
  void LookForCoordinator() override;
  void GoOnAs(std::unique_ptr<WorkerModel> next) override;
  RandomStream& random() override { return random_; }
  Time now() const override { return clock().Show(true_now()); }
  Time true_now() const override { return simulation_->now(); }
  std::uint32_t machine() const override { return machine_; }
  std::optional<WorkerId> wanted() const override { return wanted_; }

  // A message of the coordinator, which leaves it then; `make` is asked for it when it arrives.
  template <class Make>
  void Deliver(Make make, Time leaves) {
    in_at_ = std::max(in_at_, simulation_->InArrival(machine_, leaves, random_));
    simulation_->queue_.At(in_at_, [this, c = connection, make = std::move(make)] {
      Run([this, c, make] {
        if (c == connection && c != reset_) model->OnMessage(*make());
      });
    });
  }
  // Returns when the process can learn it. Messages that are on their way to it are lost (`reset`),
  // or arrive before the end does.
  Time LoseConnection(bool reset);
  // Its connection has ended; it learns that `at`.
  void LoseCoordinator(Time at);
  // A stopped process does it when it runs again, a dead one never.
  template <class F>
  void Run(F&& action) {
    if (dead) return;
    if (stopped) {
      backlog_.emplace_back(std::forward<F>(action));
    } else {
      action();
    }
  }
  void Stop(Duration time);

  coordinator::ConnectionId connection;  // the latest
  std::unique_ptr<WorkerModel> model;
  std::optional<MemberId> self;
  bool dead = false;
  bool stopped = false;
  bool closed = false;    // the connection is closed
  bool troubled = false;  // by a fault

 private:
  // A task within a task would not fit in place.
  struct GuardedTask {
    Process* process;
    std::uint32_t slot;
    void operator()() const;
  };
  GuardedTask Guarded(Task task);
  void Connect();
  const Clock& clock() const { return simulation_->machines_[machine_].clock; }

  Simulation* simulation_;
  std::uint32_t machine_;
  std::optional<WorkerId> wanted_;
  RandomStream random_;
  std::vector<std::unique_ptr<WorkerModel>> before_;  // `model`
  std::optional<coordinator::ConnectionId> reset_;    // nothing more arrives by it
  Time out_at_;
  Time in_at_;
  std::deque<Task> backlog_;
  std::deque<Task> tasks_;  // that are scheduled
  std::vector<std::uint32_t> free_;
};

}  // namespace lockstep::simulate
