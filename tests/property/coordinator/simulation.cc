#include "tests/property/coordinator/simulation.h"

#include <fmt/format.h>

#include "base/check.h"

namespace lockstep::coordinator {

class Simulation::Process final : public WorkerHost {
 public:
  Process(Simulation* simulation, std::uint32_t number, std::optional<WorkerId> wanted)
      : simulation_(simulation), number_(number), wanted_(wanted) {}

  void Start() {
    connection = ConnectionId(++simulation_->connections_);
    model = simulation_->factory_(this);
    simulation_->Step(Connected{connection, fmt::format("process {}", number_)});
    model->OnStart();
  }

  void Send(FromWorker message) override {
    // In order, and lost with the process only if it has not left yet.
    out_at_ = std::max(out_at_, simulation_->now_ + simulation_->Delay());
    simulation_->At(out_at_, [this, c = connection, m = std::move(message)]() mutable {
      if (!closed) simulation_->Step(Received{c, std::move(m)});
    });
  }
  void After(Duration delay, std::function<void()> action) override {
    simulation_->At(simulation_->now_ + delay,
                    [this, a = std::move(action)]() mutable { Run(std::move(a)); });
  }
  void AtPeer(const MemberId& peer, std::function<void(WorkerModel&)> action) override {
    simulation_->At(simulation_->now_ + simulation_->Delay(),
                    [s = simulation_, peer, a = std::move(action)]() {
                      const auto found = s->members_.find(peer);
                      if (found == s->members_.end()) return;
                      Process* process = found->second;
                      process->Run([process, a] { a(*process->model); });
                    });
  }
  void SetSelf(const MemberId& self) override {
    self_ = self;
    simulation_->members_[self] = this;
  }
  RandomStream& random() override { return simulation_->random_; }
  Time now() const override { return simulation_->now_; }
  std::uint32_t slot_hint() const override { return number_; }
  std::optional<WorkerId> wanted() const override { return wanted_; }

  void Deliver(std::shared_ptr<const ToWorker> message) {
    in_at_ = std::max(in_at_, simulation_->now_ + simulation_->Delay());
    simulation_->At(in_at_,
                    [this, message] { Run([this, message] { model->OnMessage(*message); }); });
  }
  // A stopped process does it when it runs again, a dead one never.
  void Run(std::function<void()> action) {
    if (dead) return;
    if (stopped) {
      backlog_.push_back(std::move(action));
    } else {
      action();
    }
  }
  void Stop(Duration time) {
    if (stopped || dead) return;
    stopped = true;
    simulation_->At(simulation_->now_ + time, [this] {
      stopped = false;
      std::vector<std::function<void()>> backlog = std::move(backlog_);
      backlog_.clear();
      for (auto& action : backlog) Run(std::move(action));
    });
  }

  ConnectionId connection;
  std::unique_ptr<WorkerModel> model;
  std::optional<MemberId> self_;
  bool dead = false;
  bool stopped = false;
  bool closed = false;  // the connection

 private:
  Simulation* simulation_;
  std::uint32_t number_;
  std::optional<WorkerId> wanted_;
  Time out_at_;
  Time in_at_;
  std::vector<std::function<void()>> backlog_;
};

Simulation::Simulation(StartParameters start, std::uint64_t seed, Factory factory)
    : factory_(std::move(factory)), random_(seed) {
  now_ = Time(std::chrono::seconds(1));
  start.started = now_;
  auto made = Coordinator::Make(std::move(start));
  LOCKSTEP_CHECK(made.ok(), "{}", made.error().message);
  coordinator_ = std::move(*made);
}

Simulation::~Simulation() = default;

void Simulation::At(Time time, std::function<void()> action) {
  queue_.push({time, ++order_, std::move(action)});
}

void Simulation::AddWorker(std::optional<WorkerId> wanted, Duration after) {
  At(now_ + after, [this, wanted] {
    processes_.push_back(
        std::make_unique<Process>(this, static_cast<std::uint32_t>(processes_.size()), wanted));
    processes_.back()->Start();
  });
}

void Simulation::SetFaults(Faults faults) {
  faults_ = faults;
  if (faults.kills || faults.stops || faults.coordinator_stops) NextFault();
}

void Simulation::StopJob(Duration after) {
  At(now_ + after, [this] { Step(StopRequested{"interrupted"}); });
}

void Simulation::NextFault() {
  const Duration pause = std::chrono::milliseconds(5 + random_.NextBelow(400));
  if (now_ + pause > faults_.until) return;
  At(now_ + pause, [this] {
    const std::uint64_t what = random_.NextBelow(10);
    if (what == 0 && faults_.coordinator_stops) {
      coordinator_stopped_until_ = now_ + std::chrono::milliseconds(random_.NextBelow(6000));
      At(coordinator_stopped_until_, [this] {
        auto backlog = std::move(coordinator_backlog_);
        coordinator_backlog_.clear();
        for (auto& action : backlog) action();
      });
    } else if (!processes_.empty()) {
      Process* victim = processes_[random_.NextBelow(processes_.size())].get();
      if (what < 4 && faults_.kills) {
        Kill(victim, true);
      } else if (faults_.stops) {
        victim->Stop(std::chrono::milliseconds(1 + random_.NextBelow(what < 7 ? 300 : 4000)));
      }
    }
    NextFault();
  });
}

void Simulation::Kill(Process* process, bool restart) {
  if (process->dead) return;
  process->dead = true;
  if (process->model) process->model->OnKilled();
  if (process->self_) {
    const auto found = members_.find(*process->self_);
    if (found != members_.end() && found->second == process) members_.erase(found);
  }
  const ConnectionId connection = process->connection;
  At(now_ + Delay(), [this, process, connection] {
    if (process->closed) return;
    process->closed = true;
    Step(Disconnected{connection, "connection closed by peer"});
  });
  if (restart) {
    const auto wanted = process->self_ ? std::optional(process->self_->worker) : std::nullopt;
    AddWorker(wanted, std::chrono::milliseconds(10 + random_.NextBelow(500)));
  }
}

Simulation::Process* Simulation::Find(ConnectionId connection) {
  for (auto& process : processes_) {
    if (process->connection == connection) return process.get();
  }
  return nullptr;
}

void Simulation::Step(Event event) {
  if (now_ < coordinator_stopped_until_) {
    coordinator_backlog_.push_back([this, e = std::move(event)]() mutable { Step(std::move(e)); });
    return;
  }
  if (result_) return;
  Actions actions;
  coordinator_->Step(now_, std::move(event), &actions);
  for (Action& action : actions) CarryOut(std::move(action));
}

void Simulation::CarryOut(Action action) {
  if (auto* send = std::get_if<coordinator::Send>(&action)) {
    if (on_send) on_send(*send->message);
    for (const ConnectionId to : send->to) {
      if (Process* process = Find(to)) process->Deliver(send->message);
    }
  } else if (auto* close = std::get_if<Close>(&action)) {
    Process* process = Find(close->connection);
    if (process == nullptr || process->closed) return;
    process->closed = true;
    // The process learns it after what was sent before, ends, and is started again.
    At(now_ + std::chrono::milliseconds(2),
       [this, process] { process->Run([this, process] { Kill(process, true); }); });
  } else if (auto* timer = std::get_if<SetTimer>(&action)) {
    const std::uint64_t generation = ++timer_generation_;
    if (timer->at == kNever) return;
    At(std::max(timer->at, now_), [this, generation] {
      if (generation == timer_generation_) Step(TimerFired{});
    });
  } else if (auto* line = std::get_if<LogLine>(&action)) {
    log_.push_back(fmt::format("{:.6f} {}", Seconds(now_.time_since_epoch()), line->text));
  } else if (auto* closed = std::get_if<RoundClosed>(&action)) {
    records_.push_back(closed->record);
  } else if (auto* done = std::get_if<EvaluationDone>(&action)) {
    evaluations_.push_back(done->record);
  } else if (auto* stream = std::get_if<StreamState>(&action)) {
    At(now_ + Delay(), [this, c = stream->to] { Step(StateStreamed{c}); });
  } else if (auto* save = std::get_if<SaveCheckpoint>(&action)) {
    checkpoints_.push_back(save->state);
    At(now_ + Delay(), [this, r = save->round] { Step(CheckpointSaved{r, {}}); });
  } else if (auto* finished = std::get_if<JobFinished>(&action)) {
    result_ = std::move(finished->result);
  }
}

bool Simulation::Run(Time until) {
  while (!result_ && !queue_.empty() && queue_.top().time <= until) {
    Scheduled next = std::move(const_cast<Scheduled&>(queue_.top()));
    queue_.pop();
    now_ = next.time;
    next.action();
  }
  return result_.has_value();
}

}  // namespace lockstep::coordinator
