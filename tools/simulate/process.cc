#include "tools/simulate/process.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "tools/simulate/coordinator_deaths.h"

namespace lockstep::simulate {

using coordinator::ConnectionId;

Simulation::Process::Process(Simulation* simulation, std::uint32_t machine, std::uint64_t number,
                             std::optional<WorkerId> wanted)
    : simulation_(simulation),
      machine_(machine),
      wanted_(wanted),
      random_(simulation->seed_, 1, number) {}

void Simulation::Process::Start() {
  model = simulation_->factory_(this);
  Connect();
}

void Simulation::Process::Connect() {
  connection = simulation_->NewConnection(this);
  closed = false;
  simulation_->Arrive(coordinator::Connected{connection, fmt::format("machine {}", machine_)});
  model->OnConnected();
}

// Messages keep their order, and are lost with the process only if they have not left yet.
void Simulation::Process::Send(msg::FromWorker message) {
  out_at_ = std::max(out_at_, simulation_->OutArrival(machine_, random_));
  simulation_->queue_.At(
      out_at_, [this, c = connection, m = std::make_unique<msg::FromWorker>(std::move(message))] {
        if (closed || c != connection) return;
        simulation_->Arrive(coordinator::Received{connection, std::move(*m)});
      });
}

void Simulation::Process::SendMade(std::function<msg::FromWorker()> make) {
  out_at_ = std::max(out_at_, simulation_->OutArrival(machine_, random_));
  simulation_->queue_.At(out_at_, [this, c = connection, make = std::move(make)]() mutable {
    if (closed || c != connection) return;
    simulation_->Arrive(Arrived{{}, [c, make = std::move(make)]() -> coordinator::Event {
                                  return coordinator::Received{c, make()};
                                }});
  });
}

void Simulation::Process::At(Time time, Task task) {
  AtTrue(std::max(clock().When(time), true_now()), std::move(task));
}

void Simulation::Process::AtTrue(Time time, Task task) {
  simulation_->queue_.At(time, Guarded(std::move(task)));
}

void Simulation::Process::AtPeer(const MemberId& peer, std::function<void(WorkerModel&)> action) {
  simulation_->queue_.After(simulation_->Delay(random_),
                            [s = simulation_, peer, a = std::move(action)] {
                              const auto found = s->members_.find(peer);
                              if (found == s->members_.end()) return;
                              Process* process = found->second;
                              process->Run([process, a] { a(*process->model); });
                            });
}

void Simulation::Process::SetSelf(const MemberId& id) {
  self = id;
  simulation_->members_[id] = this;
}

// As the worker's program, every now and then.
void Simulation::Process::LookForCoordinator() {
  const Duration pause = std::chrono::milliseconds(10 + random_.NextBelow(200));
  AtTrue(true_now() + pause, [this] {
    const Link& link = simulation_->machines_[machine_].link;
    const Time open = std::max(link.out_held_until, link.in_held_until);
    if (simulation_->deaths_->down() || open > true_now()) return LookForCoordinator();
    Connect();
  });
}

void Simulation::Process::GoOnAs(std::unique_ptr<WorkerModel> next) {
  before_.push_back(std::exchange(model, std::move(next)));
  if (const auto at = simulation_->members_.find(*self);
      at != simulation_->members_.end() && at->second == this) {
    simulation_->members_.erase(at);
  }
}

Time Simulation::Process::LoseConnection(bool reset) {
  closed = true;
  if (reset) reset_ = connection;
  return reset ? true_now() + simulation_->Delay(random_) : std::max(in_at_, true_now());
}

void Simulation::Process::LoseCoordinator(Time at) {
  simulation_->queue_.At(std::max(at, simulation_->machines_[machine_].link.in_held_until),
                         [this, c = connection] {
                           Run([this, c] {
                             if (c != connection) return;
                             if (!model->OnCoordinatorGone("connection reset"))
                               simulation_->Kill(this, true);
                           });
                         });
}

void Simulation::Process::Stop(Duration time) {
  if (stopped || dead) return;
  stopped = true;
  simulation_->queue_.After(time, [this] {
    stopped = false;
    std::deque<Task> backlog = std::exchange(backlog_, {});
    for (Task& action : backlog) Run(std::move(action));
  });
}

void Simulation::Process::GuardedTask::operator()() const {
  Task task = std::move(process->tasks_[slot]);
  process->free_.push_back(slot);
  process->Run(std::move(task));
}

Simulation::Process::GuardedTask Simulation::Process::Guarded(Task task) {
  if (free_.empty()) {
    tasks_.push_back(std::move(task));
    return {this, static_cast<std::uint32_t>(tasks_.size() - 1)};
  }
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  tasks_[slot] = std::move(task);
  return {this, slot};
}

}  // namespace lockstep::simulate
