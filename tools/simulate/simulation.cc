#include "tools/simulate/simulation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "tools/simulate/coordinator_deaths.h"
#include "tools/simulate/describe.h"
#include "tools/simulate/process.h"

namespace lockstep::simulate {

using coordinator::ConnectionId;

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
  deaths_ = std::make_unique<CoordinatorDeaths>(this);
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
    if (const std::optional<Time> next = deaths_->next()) {
      const Duration pause = std::chrono::milliseconds(1 + machine);
      return StartProcess(machine, wanted, *next - now() + pause);
    }
    if (deaths_->down()) return;
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
  PassWords(coordinator::Describe(message));
}

void Simulation::PassWords(const std::string& said) {
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
      if (Reattaches(start_)) {
        process->LoseCoordinator(now() + fault.length);
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
      deaths_->EndJob(fault.length);
      break;
    case FaultKind::kCrashCoordinator:
      deaths_->DieAlone(fault.length);
      break;
    case FaultKind::kTearJournal:
      deaths_->DieWithin(JobFiles::File::kJournal, fault.length);
      break;
    case FaultKind::kTearRecords:
      deaths_->DieWithin(JobFiles::File::kRecords, fault.length);
      break;
    case FaultKind::kFlipJournal:
      deaths_->DieAndFlip(JobFiles::File::kJournal, fault.length);
      break;
    case FaultKind::kFlipRecords:
      deaths_->DieAndFlip(JobFiles::File::kRecords, fault.length);
      break;
    case FaultKind::kFlipCheckpoint:
      deaths_->DieAndFlip(JobFiles::File::kCheckpoint, fault.length);
      break;
    case FaultKind::kCutLink:
    case FaultKind::kPartition:
    case FaultKind::kDelay:
    case FaultKind::kOneWay:
    case FaultKind::kHangReduction:
    case FaultKind::kHangCompute:
    case FaultKind::kAway:
    case FaultKind::kFlip:
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

void Simulation::Arrive(Arrived arrived) {
  if (result_ || deaths_->down()) return;
  if (inbox_.empty() && now() >= busy_until_ && now() >= stopped_until_) {
    Step(arrived.Take());
    return;
  }
  inbox_.push_back(std::move(arrived));
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
      std::stable_partition(inbox_.begin(), inbox_.end(), [](const Arrived& arrived) {
        return arrived.make || !std::holds_alternative<coordinator::TimerFired>(arrived.event);
      });
    }
    Arrived arrived = std::move(inbox_.front());
    inbox_.pop_front();
    Step(arrived.Take());
  }
  if (inbox_.empty() || result_) return;
  serving_ = true;
  queue_.At(std::max({now(), busy_until_, stopped_until_}), [this] { Serve(); });
}

namespace {

// The coordinator's program does it behind all sends of the step.
bool IsWritten(const coordinator::Action& action) {
  return std::holds_alternative<coordinator::RoundClosed>(action) ||
         std::holds_alternative<coordinator::EvaluationDone>(action) ||
         std::holds_alternative<coordinator::CheckpointPiece>(action) ||
         std::holds_alternative<coordinator::SaveCheckpoint>(action) ||
         std::holds_alternative<coordinator::DropCheckpoint>(action) ||
         std::holds_alternative<coordinator::JobFinished>(action);
}

}  // namespace

void Simulation::KeepFiles(const std::filesystem::path& parent) {
  files_ = std::make_unique<JobFiles>(start_, parent, seed_);
}

bool Simulation::journal_cut() const { return deaths_->journal_cut(); }

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
    const auto* note = std::get_if<coordinator::Journal>(&action);
    if (note != nullptr && !deaths_->Note(*note->entry)) return;
  }
  for (coordinator::Action& action : actions_) {
    if (!deaths_->dies() || !IsWritten(action)) CarryOut(action);
  }
  if (hooks.after_step) hooks.after_step();
  deaths_->AfterStep();
}

void Simulation::Carry(const coordinator::Send& send) {
  if (hooks.on_send) hooks.on_send(send);
  Pass(*send.message);
  const auto* commit = std::get_if<msg::Commit>(send.message.get());
  if (commit != nullptr && !commit->next) {
    deaths_->OnLastCommit(commit->round);
    PassWords(kLastCommit);
  }
  for (const ConnectionId to : send.to) {
    busy_until_ += timing_.coordinator_cost;
    Process* process = Find(to);
    if (process != nullptr && process->connection == to) {
      process->Deliver([message = send.message] { return message; }, busy_until_);
    }
  }
}

void Simulation::Carry(const std::shared_ptr<const coordinator::SendForms>& forms) {
  for (std::size_t i = 0; i < forms->to.size(); ++i) {
    if (forms->to.size() <= kTellFormsUpTo) {
      Carry(forms->To(i));
      continue;
    }
    busy_until_ += timing_.coordinator_cost;
    Process* process = Find(forms->to[i]);
    if (process == nullptr || process->connection != forms->to[i]) continue;
    process->Deliver([forms, i] { return forms->To(i).message; }, busy_until_);
  }
}

void Simulation::CarryOut(coordinator::Action& action) {
  if (auto* send = std::get_if<coordinator::Send>(&action)) {
    Carry(*send);
  } else if (auto* forms = std::get_if<coordinator::SendForms>(&action)) {
    Carry(std::make_shared<const coordinator::SendForms>(std::move(*forms)));
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
    if (now() >= writes_fail_until_ && !write_failed_) deaths_->Append(*closed->record);
    if (now() < writes_fail_until_ && !write_failed_) {
      write_failed_ = true;
      queue_.After(Duration{}, [this] {
        Arrive(coordinator::StopRequested{"rounds.jsonl: no space left on device"});
      });
    }
  } else if (auto* done = std::get_if<coordinator::EvaluationDone>(&action)) {
    if (hooks.on_evaluated) hooks.on_evaluated(done->record);
    if (files_ && now() >= writes_fail_until_) files_->Append(done->record);
  } else if (auto* cut = std::get_if<coordinator::CutRecords>(&action)) {
    if (files_) files_->CutTo(cut->state);
  } else if (auto* drop = std::get_if<coordinator::DropCheckpoint>(&action)) {
    if (files_) files_->Drop(drop->round);
  } else if (auto* stream = std::get_if<coordinator::StreamState>(&action)) {
    StreamCheckpoint(*stream);
  } else if (auto* piece = std::get_if<coordinator::CheckpointPiece>(&action)) {
    const msg::StateChunk& chunk = piece->chunk;
    if (files_) files_->Add(coordinator_->Agreed(), chunk);
    if (chunk.offset == 0) writing_.resize(chunk.tensor);
    if (chunk.offset == 0) writing_.emplace_back();
    writing_.back().insert(writing_.back().end(), chunk.bytes.begin(), chunk.bytes.end());
  } else if (auto* save = std::get_if<coordinator::SaveCheckpoint>(&action)) {
    Save(*save);
  } else if (auto* finished = std::get_if<coordinator::JobFinished>(&action)) {
    if (finished->result.outcome == coordinator::JobOutcome::kHandedOver) {
      deaths_->HandOver();
    } else {
      result_ = std::move(finished->result);
    }
  }
}

// --- the coordinator's disk and process

void Simulation::Save(const coordinator::SaveCheckpoint& save) {
  if (hooks.on_checkpoint) hooks.on_checkpoint(save.state);
  std::string error;
  if (now() < saves_fail_until_) {
    error = "no space left on device";
    if (files_) files_->Drop(save.round);
  } else {
    if (files_) files_->Save(save.round, save.state);
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

void Simulation::ForgetCoordinator() {
  inbox_.clear();
  writing_.clear();
  ++timer_generation_;
}

void Simulation::StartNextCoordinator(const std::vector<coordinator::JournalEntry>& journal,
                                      std::optional<coordinator::JobState> checkpoint) {
  write_failed_ = false;
  busy_until_ = stopped_until_ = now();
  streamed_.clear();
  start_.journal = journal;
  start_.resume = std::move(checkpoint);
  start_.term = Term(start_.term.value + 1);
  start_.started = now();
  auto made = coordinator::Coordinator::Make(start_);
  LOCKSTEP_CHECK(made.ok(), "{}", made.error().message);
  coordinator_ = std::move(*made);
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
