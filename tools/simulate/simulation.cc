#include "tools/simulate/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "tools/simulate/describe.h"

namespace lockstep::simulate {

using coordinator::ConnectionId;

class Simulation::Process final : public WorkerHost {
 public:
  Process(Simulation* simulation, std::uint32_t machine, std::uint64_t number,
          std::optional<WorkerId> wanted)
      : simulation_(simulation),
        machine_(machine),
        wanted_(wanted),
        random_(simulation->seed_, 1, number) {}

  void Start() {
    model = simulation_->factory_(this);
    Connect();
  }
  void Connect() {
    connection = simulation_->NewConnection(this);
    closed = false;
    simulation_->Arrive(coordinator::Connected{connection, fmt::format("machine {}", machine_)});
    model->OnConnected();
  }

  void Send(msg::FromWorker message) override {
    // Messages keep their order, and are lost with the process only if they have not left yet.
    out_at_ = std::max(out_at_, simulation_->OutArrival(machine_, random_));
    simulation_->queue_.At(
        out_at_, [this, c = connection, m = std::make_unique<msg::FromWorker>(std::move(message))] {
          if (closed || c != connection) return;
          simulation_->Arrive(coordinator::Received{connection, std::move(*m)});
        });
  }
  void At(Time time, Task task) override {
    AtTrue(std::max(clock().When(time), true_now()), std::move(task));
  }
  void AtTrue(Time time, Task task) override {
    simulation_->queue_.At(time, Guarded(std::move(task)));
  }
  void AtPeer(const MemberId& peer, std::function<void(WorkerModel&)> action) override {
    simulation_->queue_.After(simulation_->Delay(random_),
                              [s = simulation_, peer, a = std::move(action)] {
                                const auto found = s->members_.find(peer);
                                if (found == s->members_.end()) return;
                                Process* process = found->second;
                                process->Run([process, a] { a(*process->model); });
                              });
  }
  void SetSelf(const MemberId& id) override {
    self = id;
    simulation_->members_[id] = this;
  }
  // As the worker's program, every now and then.
  void LookForCoordinator() override {
    const Duration pause = std::chrono::milliseconds(10 + random_.NextBelow(200));
    AtTrue(true_now() + pause, [this] {
      const Link& link = simulation_->machines_[machine_].link;
      const Time open = std::max(link.out_held_until, link.in_held_until);
      if (simulation_->down_ || open > true_now()) return LookForCoordinator();
      Connect();
    });
  }
  void GoOnAs(std::unique_ptr<WorkerModel> next) override {
    before_.push_back(std::exchange(model, std::move(next)));
    if (const auto at = simulation_->members_.find(*self);
        at != simulation_->members_.end() && at->second == this) {
      simulation_->members_.erase(at);
    }
  }
  RandomStream& random() override { return random_; }
  Time now() const override { return clock().Show(true_now()); }
  Time true_now() const override { return simulation_->now(); }
  std::uint32_t machine() const override { return machine_; }
  std::optional<WorkerId> wanted() const override { return wanted_; }

  void Deliver(const std::shared_ptr<const msg::ToWorker>& message, Time leaves) {
    in_at_ = std::max(in_at_, simulation_->InArrival(machine_, leaves, random_));
    simulation_->queue_.At(in_at_, [this, c = connection, message] {
      Run([this, c, message] {
        if (c == connection && c != reset_) model->OnMessage(*message);
      });
    });
  }
  // What is on its way to it is lost, or arrives before the end does.
  Time LoseConnection(bool reset) {
    closed = true;
    if (reset) reset_ = connection;
    return reset ? true_now() + simulation_->Delay(random_) : std::max(in_at_, true_now());
  }
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
  void Stop(Duration time) {
    if (stopped || dead) return;
    stopped = true;
    simulation_->queue_.After(time, [this] {
      stopped = false;
      std::deque<Task> backlog = std::exchange(backlog_, {});
      for (Task& action : backlog) Run(std::move(action));
    });
  }

  ConnectionId connection;  // the latest
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
    void operator()() const {
      Task task = std::move(process->tasks_[slot]);
      process->free_.push_back(slot);
      process->Run(std::move(task));
    }
  };
  GuardedTask Guarded(Task task) {
    if (free_.empty()) {
      tasks_.push_back(std::move(task));
      return {this, static_cast<std::uint32_t>(tasks_.size() - 1)};
    }
    const std::uint32_t slot = free_.back();
    free_.pop_back();
    tasks_[slot] = std::move(task);
    return {this, slot};
  }

  const Clock& clock() const { return simulation_->machines_[machine_].clock; }

  Simulation* simulation_;
  std::uint32_t machine_;
  std::optional<WorkerId> wanted_;
  RandomStream random_;
  std::vector<std::unique_ptr<WorkerModel>> before_;  // `model`
  std::optional<ConnectionId> reset_;                 // nothing more arrives by it
  Time out_at_;
  Time in_at_;
  std::deque<Task> backlog_;
  std::deque<Task> tasks_;  // that are scheduled
  std::vector<std::uint32_t> free_;
};

Simulation::Simulation(coordinator::StartParameters start, std::uint64_t seed, ControlTiming timing,
                       Factory factory)
    : timing_(timing),
      seed_(seed),
      factory_(std::move(factory)),
      queue_(kStart),
      random_(seed, 2),
      busy_until_(kStart),
      stopped_until_(kStart) {
  start_ = std::move(start);
  start_.started = kStart;
  if (start_.resume) disk_ = SavedCheckpoint{*start_.resume, {}};  // no tensors: nobody reads them
  auto made = coordinator::Coordinator::Make(start_);
  LOCKSTEP_CHECK(made.ok(), "{}", made.error().message);
  coordinator_ = std::move(*made);
}

Simulation::~Simulation() = default;

namespace {

Duration Below(Duration limit, RandomStream& random) {
  return Duration(random.NextBelow(static_cast<std::uint64_t>(limit.count()) + 1));
}

}  // namespace

Duration Simulation::Delay(RandomStream& random) {
  if (timing_.jitter == Duration{}) return timing_.latency;
  return timing_.latency +
         Duration(random.NextBelow(static_cast<std::uint64_t>(timing_.jitter.count())));
}

// Returns the arrival of a message that is sent now.
Time Simulation::OutArrival(std::uint32_t machine, RandomStream& random) {
  const Link& link = machines_[machine].link;
  Time arrives = now() + Delay(random);
  if (now() < link.slow_until) arrives += Below(link.slow_by, random);
  return std::max(arrives, link.out_held_until);
}

Time Simulation::InArrival(std::uint32_t machine, Time leaves, RandomStream& random) {
  const Link& link = machines_[machine].link;
  Time arrives = leaves + Delay(random);
  if (leaves < link.slow_until) arrives += Below(link.slow_by, random);
  return std::max(arrives, link.in_held_until);
}

Time Simulation::Clock::Show(Time t) const {
  if (rate == 1) return local + (t - from);
  return local +
         Duration(static_cast<Duration::rep>(static_cast<double>((t - from).count()) * rate));
}

Time Simulation::Clock::When(Time shown) const {
  if (rate == 1 || shown == kNever) return shown == kNever ? kNever : from + (shown - local);
  const double passed = std::ceil(static_cast<double>((shown - local).count()) / rate);
  return from + Duration(static_cast<Duration::rep>(passed) + 1);
}

void Simulation::AddWorker(Duration after) {
  const auto machine = static_cast<std::uint32_t>(machines_.size());
  machines_.emplace_back();
  StartProcess(machine, std::nullopt, after);
}

// A process that cannot connect tries again.
void Simulation::StartProcess(std::uint32_t machine, std::optional<WorkerId> wanted,
                              Duration after) {
  queue_.After(after, [this, machine, wanted, start = ++machines_[machine].starts] {
    if (start != machines_[machine].starts) return;
    if (next_coordinator_) {
      const Duration pause = std::chrono::milliseconds(1 + machine);
      return StartProcess(machine, wanted, *next_coordinator_ - now() + pause);
    }
    if (down_) return;
    const Link& link = machines_[machine].link;
    const Time open = std::max(link.out_held_until, link.in_held_until);
    if (open > now()) return StartProcess(machine, wanted, open - now());
    processes_.push_back(std::make_unique<Process>(this, machine, processes_.size() + 1, wanted));
    machines_[machine].process = processes_.back().get();
    processes_.back()->Start();
  });
}

void Simulation::AddFaults(const std::vector<Fault>& faults) {
  for (const Fault& fault : faults) {
    if (fault.moment) {
      waiting_.push_back({fault});
      continue;
    }
    queue_.At(std::max(now(), kStart + fault.at), [this, fault] { Inject(fault); });
  }
}

std::vector<Fault> Simulation::FaultsToCome() const {
  std::vector<Fault> faults;
  for (const Waiting& waiting : waiting_) faults.push_back(waiting.fault);
  return faults;
}

// Faults come after traffic under way: a sent message is on its way, and a received one has been
// handled.
template <class Message>
void Simulation::Pass(const Message& message) {
  if (waiting_.empty()) return;
  const std::string said = coordinator::Describe(message);
  std::erase_if(waiting_, [&](Waiting& waiting) {
    const Moment& moment = *waiting.fault.moment;
    if (!moment.Matches(said) || ++waiting.passed < moment.count) return false;
    queue_.After(waiting.fault.at, [this, fault = waiting.fault] { Inject(fault); });
    return true;
  });
}

void Simulation::StopJob(Duration after) {
  queue_.After(after, [this] { Arrive(coordinator::StopRequested{"interrupted"}); });
}

void Simulation::Inject(const Fault& fault) {
  if (hooks.on_fault) hooks.on_fault(fault);
  Process* process = fault.machine < machines_.size() ? machines_[fault.machine].process : nullptr;
  if (fault.machine >= machines_.size()) return;
  const auto is_any_of = [&](auto... kinds) { return ((fault.kind == kinds) || ...); };
  using enum FaultKind;
  if (process != nullptr && is_any_of(kCrash, kLoseControl, kStop, kControlOut, kControlIn,
                                      kHangReduction, kHangCompute, kDieUnseen)) {
    process->troubled = true;
  }
  // It may not be lost during the time that it has announced.
  if (process != nullptr && fault.kind == kAway && fault.length > kSaidAway) {
    process->troubled = true;
  }
  Link& link = machines_[fault.machine].link;
  const Time until = now() + fault.length;
  switch (fault.kind) {
    case FaultKind::kCrash:
      if (process != nullptr) Kill(process, true);
      break;
    case FaultKind::kDieUnseen:
      if (process != nullptr) Kill(process, true, fault.length);
      break;
    case FaultKind::kLoseControl:
      if (process == nullptr || process->dead || process->closed) break;
      process->closed = true;
      Arrive(coordinator::Disconnected{process->connection, "connection reset"});
      if (reattaches()) {
        LoseCoordinator(process, now() + fault.length);
      } else {
        queue_.After(fault.length, [this, process] { Kill(process, true); });
      }
      break;
    case FaultKind::kStop:
      if (process != nullptr) process->Stop(fault.length);
      break;
    case FaultKind::kStopCoordinator:
      stopped_until_ = std::max(stopped_until_, now() + fault.length);
      break;
    case FaultKind::kControlOut:
      link.out_held_until = std::max(link.out_held_until, until);
      break;
    case FaultKind::kControlIn:
      link.in_held_until = std::max(link.in_held_until, until);
      break;
    case FaultKind::kSlowControl:
      link.slow_until = now() + std::chrono::seconds(1);
      link.slow_by = fault.length;
      break;
    case FaultKind::kFastClock:
    case FaultKind::kSlowClock: {
      Clock& clock = machines_[fault.machine].clock;
      const double by = fault.kind == FaultKind::kFastClock ? 1.0 : -1.0;
      clock = {now(), clock.Show(now()), 1 + by * Seconds(fault.length)};
      break;
    }
    case FaultKind::kFailCheckpoint:
      saves_fail_until_ = std::max(saves_fail_until_, until);
      break;
    case FaultKind::kFullDisk:
      saves_fail_until_ = std::max(saves_fail_until_, until);
      writes_fail_until_ = std::max(writes_fail_until_, until);
      break;
    case FaultKind::kResume:
      EndCoordinator(fault.length);
      break;
    case FaultKind::kCrashCoordinator:
      CrashCoordinator(fault.length);
      break;
    case FaultKind::kCutLink:
    case FaultKind::kPartition:
    case FaultKind::kDelay:
    case FaultKind::kOneWay:
    case FaultKind::kHangReduction:
    case FaultKind::kHangCompute:
    case FaultKind::kAway:
      break;  // a fault of the data plane or the worker: the hook passes it on
  }
}

bool Simulation::Troubled(const MemberId& member) const {
  const auto found = members_.find(member);
  return found == members_.end() || found->second->troubled;
}

void Simulation::Kill(Process* process, bool restart, Duration unseen) {
  if (process->dead) return;
  process->dead = true;
  if (process->model) process->model->OnKilled();
  if (process->self) {
    const auto found = members_.find(*process->self);
    if (found != members_.end() && found->second == process) members_.erase(found);
  }
  queue_.At(OutArrival(process->machine(), random_) + unseen, [this, process] {
    if (process->closed) return;
    process->closed = true;
    Arrive(coordinator::Disconnected{process->connection, "connection closed by peer"});
  });
  if (!restart) return;
  const auto wanted = process->self ? std::optional(process->self->worker) : std::nullopt;
  StartProcess(process->machine(), wanted,
               std::chrono::milliseconds(10 + process->random().NextBelow(500)));
}

Simulation::Process* Simulation::Find(ConnectionId connection) {
  return connection.value - 1 < connections_.size() ? connections_[connection.value - 1] : nullptr;
}

ConnectionId Simulation::NewConnection(Process* process) {
  connections_.push_back(process);
  return ConnectionId(connections_.size());
}

// --- the coordinator's thread: one message at a time, each at its cost

void Simulation::Arrive(coordinator::Event event) {
  if (result_ || down_) return;
  if (inbox_.empty() && now() >= busy_until_ && now() >= stopped_until_) {
    Step(std::move(event));
    return;
  }
  inbox_.push_back(std::move(event));
  was_stopped_ = was_stopped_ || now() < stopped_until_;
  if (serving_) return;
  serving_ = true;
  queue_.At(std::max({now(), busy_until_, stopped_until_}), [this] { Serve(); });
}

void Simulation::Serve() {
  serving_ = false;
  if (result_ || inbox_.empty()) return;
  if (now() >= stopped_until_ && now() >= busy_until_) {
    if (was_stopped_) {
      was_stopped_ = false;
      // After a stop the sockets are read before the timer is looked at.
      std::stable_partition(inbox_.begin(), inbox_.end(), [](const coordinator::Event& event) {
        return !std::holds_alternative<coordinator::TimerFired>(event);
      });
    }
    coordinator::Event event = std::move(inbox_.front());
    inbox_.pop_front();
    Step(std::move(event));
  }
  if (inbox_.empty() || result_) return;
  serving_ = true;
  queue_.At(std::max({now(), busy_until_, stopped_until_}), [this] { Serve(); });
}

void Simulation::Step(coordinator::Event event) {
  busy_until_ = now() + timing_.coordinator_cost;
  if (hooks.on_event) hooks.on_event(event);
  if (const auto* heard = std::get_if<coordinator::Received>(&event)) Pass(heard->message);
  // Carrying out actions steps nothing: every consequence is an event of its own.
  actions_.clear();
  const Time began = MonotonicNow();
  coordinator_->Step(now(), std::move(event), &actions_);
  coordinator_time_ += MonotonicNow() - began;
  ++coordinator_steps_;
  // As the coordinator's program: the journal has a commit before anybody hears of it.
  for (const coordinator::Action& action : actions_) {
    if (const auto* note = std::get_if<coordinator::Journal>(&action)) Note(*note->entry);
  }
  for (coordinator::Action& action : actions_) CarryOut(action);
  if (hooks.after_step) hooks.after_step();
}

void Simulation::Carry(const coordinator::Send& send) {
  if (hooks.on_send) hooks.on_send(send);
  Pass(*send.message);
  const auto* commit = std::get_if<msg::Commit>(send.message.get());
  if (commit != nullptr && !commit->next) last_commit_ = true;
  for (const ConnectionId to : send.to) {
    busy_until_ += timing_.coordinator_cost;
    Process* process = Find(to);
    if (process != nullptr && process->connection == to) {
      process->Deliver(send.message, busy_until_);
    }
  }
}

void Simulation::CarryOut(coordinator::Action& action) {
  if (auto* send = std::get_if<coordinator::Send>(&action)) {
    Carry(*send);
  } else if (auto* close = std::get_if<coordinator::Close>(&action)) {
    if (hooks.on_close) hooks.on_close(*close);
    Process* process = Find(close->connection);
    if (process == nullptr || process->closed || process->connection != close->connection) return;
    process->closed = true;
    // The process learns it after earlier messages, ends, and is started again.
    queue_.At(
        std::max(busy_until_ + timing_.latency + timing_.jitter + std::chrono::milliseconds(1),
                 machines_[process->machine()].link.in_held_until),
        [this, process] { process->Run([this, process] { Kill(process, true); }); });
  } else if (auto* timer = std::get_if<coordinator::SetTimer>(&action)) {
    const std::uint64_t generation = ++timer_generation_;
    if (timer->at == kNever) return;
    queue_.At(std::max(timer->at, now()), [this, generation] {
      if (generation == timer_generation_) Arrive(coordinator::TimerFired{});
    });
  } else if (auto* line = std::get_if<coordinator::LogLine>(&action)) {
    if (hooks.on_log) hooks.on_log(*line);
  } else if (auto* closed = std::get_if<coordinator::RoundClosed>(&action)) {
    if (hooks.on_closed) hooks.on_closed(closed->record);
    if (now() < writes_fail_until_ && !write_failed_) {
      write_failed_ = true;
      queue_.After(Duration{}, [this] {
        Arrive(coordinator::StopRequested{"rounds.jsonl: no space left on device"});
      });
    }
  } else if (auto* done = std::get_if<coordinator::EvaluationDone>(&action)) {
    if (hooks.on_evaluated) hooks.on_evaluated(done->record);
  } else if (auto* stream = std::get_if<coordinator::StreamState>(&action)) {
    StreamCheckpoint(*stream);
  } else if (auto* piece = std::get_if<coordinator::CheckpointPiece>(&action)) {
    const msg::StateChunk& chunk = piece->chunk;
    if (chunk.offset == 0) writing_.resize(chunk.tensor);
    if (chunk.offset == 0) writing_.emplace_back();
    writing_.back().insert(writing_.back().end(), chunk.bytes.begin(), chunk.bytes.end());
  } else if (auto* save = std::get_if<coordinator::SaveCheckpoint>(&action)) {
    Save(*save);
  } else if (auto* finished = std::get_if<coordinator::JobFinished>(&action)) {
    result_ = std::move(finished->result);
  }
}

// --- the coordinator's disk, and what becomes of a job whose coordinator dies

void Simulation::Save(const coordinator::SaveCheckpoint& save) {
  if (hooks.on_checkpoint) hooks.on_checkpoint(save.state);
  std::string error;
  if (now() < saves_fail_until_) {
    error = "no space left on device";
  } else {
    disk_ = SavedCheckpoint{save.state, std::exchange(writing_, {})};
    if (hooks.on_saved) hooks.on_saved(*disk_);
  }
  queue_.After(Delay(random_), [this, r = save.round, error] {
    Arrive(coordinator::CheckpointSaved{r, error});
  });
}

// The worker answers each chunk by itself. A checkpoint that nobody saved here has no chunks.
void Simulation::StreamCheckpoint(const coordinator::StreamState& stream) {
  constexpr std::uint64_t kChunk = 4096;
  if (!disk_ || disk_->tensors.empty()) {
    queue_.After(Delay(random_), [this, c = stream.to, bytes = stream.upto] {
      Arrive(coordinator::Received{c, msg::CheckpointTaken{bytes}});
    });
    return;
  }
  const auto& tensors = disk_->tensors;
  for (std::uint64_t& sent = streamed_[stream.to]; sent < stream.upto;) {
    const std::uint64_t tensor_bytes = tensors.front().size();
    msg::StateChunk chunk;
    chunk.round = RoundId(disk_->state.next_round.value - 1);
    chunk.tensor = static_cast<std::uint32_t>(sent / tensor_bytes);
    chunk.offset = sent % tensor_bytes;
    const std::uint64_t bytes = std::min({kChunk, stream.upto - sent, tensor_bytes - chunk.offset});
    const auto from = tensors[chunk.tensor].begin() + static_cast<std::ptrdiff_t>(chunk.offset);
    chunk.bytes.assign(from, from + static_cast<std::ptrdiff_t>(bytes));
    sent += bytes;
    chunk.last = sent == tensor_bytes * tensors.size();
    Carry({{stream.to}, std::make_shared<const msg::ToWorker>(std::move(chunk))});
  }
}

// A user who resumes a job first ends its remaining processes. After its last checkpoint there is
// nothing to resume.
void Simulation::EndCoordinator(Duration length) {
  if (!disk_ || down_ || result_) return;
  coordinator::StartParameters trial = start_;
  trial.resume = disk_->state;
  if (!coordinator::Coordinator::Make(std::move(trial)).ok()) return;
  ForgetCoordinator();
  for (const std::unique_ptr<Process>& process : processes_) {
    process->closed = true;
    Kill(process.get(), false);
  }
  queue_.After(length, [this] { Resume(); });
}

void Simulation::ForgetCoordinator() {
  down_ = true;
  inbox_.clear();
  writing_.clear();
  ++timer_generation_;
}

void Simulation::StartNextCoordinator() {
  down_ = write_failed_ = last_commit_ = false;
  busy_until_ = stopped_until_ = now();
  streamed_.clear();
  start_.resume.reset();
  if (disk_) start_.resume = disk_->state;
  start_.term = Term(start_.term.value + 1);
  start_.started = now();
  auto made = coordinator::Coordinator::Make(start_);
  LOCKSTEP_CHECK(made.ok(), "{}", made.error().message);
  coordinator_ = std::move(*made);
}

void Simulation::Resume() {
  journal_.clear();
  start_.journal.clear();
  StartNextCoordinator();
  if (hooks.on_resumed) hooks.on_resumed(*disk_);
  for (std::uint32_t m = 0; m < machines_.size(); ++m) {
    const Process* last = machines_[m].process;
    const auto wanted = last != nullptr && last->self ? std::optional(last->self->worker)
                                                      : std::optional<WorkerId>();
    StartProcess(m, wanted, std::chrono::milliseconds(random_.NextBelow(300)));
  }
}

// --- a coordinator that dies alone

bool Simulation::reattaches() const {
  return start_.config.job.coordinator_timeout_s != 0 &&
         start_.config.optimizer.Shards(start_.workers) == 0;
}

// The file keeps the last entries when it is rewritten; here it always is.
void Simulation::Note(const coordinator::JournalEntry& entry) {
  constexpr std::size_t kKept = 4;
  if (!entry.attempt) {
    std::erase_if(journal_,
                  [&](const auto& e) { return e.state.next_round > entry.state.next_round; });
  }
  journal_.push_back(entry);
  if (journal_.size() > kKept) journal_.erase(journal_.begin());
  if (std::exchange(taking_over_, false) && hooks.on_taken_over) hooks.on_taken_over(entry.state);
}

// Before anything was noted the next one would begin the job anew; after the last commit there is
// nothing to go on with.
void Simulation::CrashCoordinator(Duration length) {
  if (down_ || result_) return;
  if (!reattaches()) return EndCoordinator(length);
  if (journal_.empty() || last_commit_) return;
  ForgetCoordinator();
  if (hooks.on_crashed) hooks.on_crashed();
  next_coordinator_ = now() + length;
  for (const std::unique_ptr<Process>& process : processes_) {
    if (process->dead || process->closed) continue;
    LoseCoordinator(process.get(), process->LoseConnection(random_.NextBelow(2) == 0));
  }
  queue_.After(length, [this] { TakeOver(); });
}

void Simulation::LoseCoordinator(Process* process, Time at) {
  queue_.At(std::max(at, machines_[process->machine()].link.in_held_until),
            [this, process, c = process->connection] {
              process->Run([this, process, c] {
                if (c != process->connection) return;
                if (!process->model->OnCoordinatorGone("connection reset")) Kill(process, true);
              });
            });
}

void Simulation::TakeOver() {
  next_coordinator_.reset();
  taking_over_ = true;
  start_.journal = journal_;
  StartNextCoordinator();
}

bool Simulation::RunNext() {
  if (result_ || queue_.empty()) return false;
  queue_.RunNext();
  return true;
}

bool Simulation::Run(Time until) {
  while (!result_ && queue_.next() <= until && !queue_.empty()) queue_.RunNext();
  return result_.has_value();
}

}  // namespace lockstep::simulate
