#include "tests/golden/story.h"

#include <fmt/format.h>

#include <array>
#include <numeric>

#include "base/check.h"
#include "coordinator/record/write_json.h"
#include "tools/simulate/describe.h"

namespace lockstep::coordinator {
namespace {

constexpr Duration kStep = std::chrono::milliseconds(1);

}  // namespace

Story::Story(std::string title, StoryOptions options) : options_(std::move(options)) {
  StartParameters start;
  start.workers = options_.workers;
  start.begin_workers = options_.begin_workers;
  start.job_id = "story";
  start.config.policy.name = options_.policy;
  if (options_.replicas) start.config.optimizer.replicas = *options_.replicas;
  start.config.job.min_workers = options_.min_workers;
  start.config.job.quorum_timeout_s = options_.quorum_timeout_s;
  start.config.job.epochs = options_.epochs;
  start.config.job.rounds = options_.epochs > 0 ? 0 : options_.rounds;
  start.config.job.global_batch = options_.global_batch;
  start.config.job.units = options_.units;
  start.config.exchange.transport = options_.transport;
  start.config.exchange.algorithm = options_.algorithm;
  start.config.exchange.connections = options_.connections;
  start.config.data.digest = options_.data_digest;
  start.config.checkpoint.every_epochs = options_.checkpoint_every_epochs;
  start.config.evaluation.every_epochs = 0;
  start.config.evaluation.every_rounds = options_.evaluation_every_rounds;
  start.resume = options_.resume;
  start.journal = options_.journal;
  start.journal_followed = options_.journal_followed;
  if (!start.journal.empty()) start.term = Term(2);
  auto made = Coordinator::Make(std::move(start));
  LOCKSTEP_CHECK(made.ok(), "{}", made.error().message);
  coordinator_ = std::move(*made);
  text_ = fmt::format("# {}\n", title);
}

void Story::Say(const std::string& line) { text_ += fmt::format("\n{}\n", line); }

void Story::Step(Event event, const std::string& line) {
  now_ += kStep;
  if (!quiet_) {
    text_ += fmt::format("{:.3f} {}\n",
                         std::chrono::duration<double>(now_.time_since_epoch()).count(), line);
  }
  Actions actions;
  coordinator_->Step(now_, std::move(event), &actions);
  coordinator_->CheckInvariants();
  for (const Action& action : actions) Note(action);
}

std::string Story::Receivers(const std::vector<ConnectionId>& to) const {
  std::string text;
  std::size_t known = 0;
  for (const auto& [slot, worker] : state_) {
    known += worker.connection.value != 0 ? 1 : 0;
    for (const ConnectionId connection : to) {
      if (connection == worker.connection)
        text += fmt::format("{}{}", text.empty() ? "" : ",", slot);
    }
  }
  return to.size() > 1 && to.size() == known ? "all" : text;
}

void Story::Note(const Action& action) {
  const auto line = [this](const std::string& words) {
    if (!quiet_) text_ += fmt::format("        {}\n", words);
  };
  if (const auto* send = std::get_if<Send>(&action)) {
    for (auto& [slot, worker] : state_) {
      for (const ConnectionId to : send->to) {
        if (to == worker.connection) Learn(slot, *send->message);
      }
    }
    if (const auto* ping = std::get_if<msg::Ping>(send->message.get())) {
      ping_ = ping->sequence;
    } else {
      line(fmt::format("-> {}: {}", Receivers(send->to), Describe(*send->message)));
    }
  } else if (const auto* forms = std::get_if<SendForms>(&action)) {
    for (std::size_t i = 0; i < forms->to.size(); ++i) Note(forms->To(i));
  } else if (const auto* close = std::get_if<Close>(&action)) {
    line(fmt::format("close {}: {}", Receivers({close->connection}), close->reason));
    for (auto& [slot, worker] : state_) {
      if (worker.connection == close->connection) worker.connection = {};
    }
  } else if (const auto* timer = std::get_if<SetTimer>(&action)) {
    timer_ = timer->at;
  } else if (const auto* log = std::get_if<LogLine>(&action)) {
    constexpr std::array kLevels = {"debug", "info", "warning", "warning"};
    line(fmt::format("log {}: {}", kLevels.at(static_cast<std::size_t>(log->level)), log->text));
  } else if (const auto* closed = std::get_if<RoundClosed>(&action)) {
    record_ = closed->record;
    // Or the job could never be resumed, and nobody could look at it.
    const auto read = RoundFromLine(RoundLine(*record_));
    LOCKSTEP_CHECK(read.ok(), "{}", read.error().message);
    line(Describe(*record_));
  } else if (const auto* note = std::get_if<Journal>(&action)) {
    journal_.push_back(*note->entry);
  } else if (const auto* cut = std::get_if<CutRecords>(&action)) {
    line(fmt::format("cut the records back to round {}", cut->state.next_round));
  } else if (const auto* done = std::get_if<EvaluationDone>(&action)) {
    line(fmt::format("evaluation after round {}: accuracy {:.2f}", done->record.round,
                     done->record.accuracy));
  } else if (const auto* stream = std::get_if<StreamState>(&action)) {
    line(fmt::format("stream the checkpoint to {}, up to {} bytes", Receivers({stream->to}),
                     stream->upto));
  } else if (const auto* piece = std::get_if<CheckpointPiece>(&action)) {
    line(
        fmt::format("checkpoint piece: tensor {} at {}", piece->chunk.tensor, piece->chunk.offset));
  } else if (const auto* save = std::get_if<SaveCheckpoint>(&action)) {
    line(fmt::format("save the checkpoint after round {} (next {}, epoch {})", save->round,
                     save->state.next_round, save->state.sampler.epoch));
  } else if (const auto* drop = std::get_if<DropCheckpoint>(&action)) {
    line(fmt::format("drop the checkpoint after round {}", drop->round));
  } else if (const auto* answer = std::get_if<Answer>(&action)) {
    line(fmt::format("{}: {}", answer->accepted ? "answer" : "refusal", answer->text));
  } else if (const auto* abandon = std::get_if<Abandon>(&action)) {
    line("abandon: " + abandon->reason);
  } else if (const auto* finished = std::get_if<JobFinished>(&action)) {
    line(Describe(finished->result));
  }
}

void Story::TakePlan(Worker* worker, const Plan& plan) {
  worker->round = plan.round;
  worker->plan = plan.attempt;
  worker->queue.clear();
  worker->parts = 0;
  worker->map_version = plan.owners.version;
  for (const Assignment& assignment : plan.assignments) {
    if (assignment.member == worker->self) worker->queue = assignment.units;
  }
}

void Story::Learn(std::uint32_t slot, const msg::ToWorker& message) {
  Worker& worker = state_[slot];
  if (const auto* welcome = std::get_if<msg::Welcome>(&message)) {
    worker.self = welcome->self;
    worker.decided = welcome->decided;
  } else if (const auto* form = std::get_if<msg::Form>(&message)) {
    worker.form = *form;
    worker.to_answer = true;
  } else if (const auto* start = std::get_if<msg::Start>(&message)) {
    TakePlan(&worker, start->plan);
  } else if (const auto* commit = std::get_if<msg::Commit>(&message)) {
    worker.commit = *commit;
    if (commit->next) TakePlan(&worker, *commit->next);
  } else if (const auto* take = std::get_if<msg::TakeSums>(&message)) {
    worker.commit = take->commit;
  } else if (const auto* assign = std::get_if<msg::Assign>(&message)) {
    worker.queue.insert(worker.queue.end(), assign->units.begin(), assign->units.end());
  } else if (const auto* owners = std::get_if<msg::NewOwners>(&message)) {
    worker.map_version = owners->owners.version;
  } else if (const auto* revoke = std::get_if<msg::Revoke>(&message)) {
    worker.queue.resize(std::min<std::size_t>(worker.queue.size(), revoke->from));
  } else if (const auto* fence = std::get_if<msg::FenceRound>(&message)) {
    worker.queue.clear();
    worker.fence_order = fence->order;
  } else if (const auto* attempt = std::get_if<msg::FenceAttempt>(&message)) {
    worker.hold_order = attempt->order;
  } else if (const auto* copy = std::get_if<msg::CatchUp>(&message)) {
    worker.copy_order = copy->order;
  }
}

void Story::AnswerAll() {
  for (auto& [slot, worker] : state_) {
    if (!worker.never_reaches || worker.connection.value == 0) continue;
    Pong(slot);
    if (worker.to_answer) NotReached(slot);
  }
}

void Story::Wait(double seconds) {
  const Time until = now_ + FromSeconds(seconds);
  while (timer_ <= until && !coordinator_->finished()) {
    now_ = std::max(now_, timer_) - kStep;
    // Everybody answers pings but those who are said to be silent.
    Step(TimerFired{}, "timer");
    const std::string tail = fmt::format(
        "{:.3f} timer\n", std::chrono::duration<double>(now_.time_since_epoch()).count());
    if (text_.ends_with(tail)) text_.erase(text_.size() - tail.size());
    AnswerAll();
  }
  now_ = until;
}

void Story::Stand(double seconds) { now_ = std::max(now_, timer_) + FromSeconds(seconds); }

void Story::Interrupt() { Step(StopRequested{"interrupted by SIGINT"}, "SIGINT"); }

void Story::Ask(Event event, const std::string& what) { Step(std::move(event), what); }

void Story::Connect(std::uint32_t worker) {
  const bool again = state_.contains(worker);
  const auto parts = again ? state_[worker].ready : msg::Ready{};
  state_[worker] = {};
  state_[worker].ready = parts;
  state_[worker].connection = ConnectionId(++connections_);
  const bool was_quiet = quiet_;
  quiet_ = true;
  Step(Connected{state_[worker].connection, "127.0.0.1"}, "");
  quiet_ = was_quiet;
}

void Story::Die(std::uint32_t worker) {
  const ConnectionId connection = state_[worker].connection;
  state_[worker].connection = {};
  Step(Disconnected{connection, "connection closed"}, fmt::format("worker {} dies", worker));
}

void Story::From(std::uint32_t worker, msg::FromWorker message) {
  // Answers that name no order are to the last one that came.
  const Worker& knows = state_[worker];
  const auto answers = [](std::uint32_t* order, std::uint32_t last) {
    if (*order == 0) *order = last;
  };
  if (auto* fenced = std::get_if<msg::Revoked>(&message); fenced != nullptr && fenced->fenced) {
    answers(&fenced->order, knows.fence_order);
  } else if (auto* hold = std::get_if<msg::HoldAnswer>(&message)) {
    answers(&hold->order, knows.hold_order);
  } else if (auto* level = std::get_if<msg::Level>(&message)) {
    answers(&level->order, knows.copy_order);
  } else if (auto* copied = std::get_if<msg::Copied>(&message)) {
    answers(&copied->order, knows.copy_order);
  } else if (auto* behind = std::get_if<msg::Behind>(&message)) {
    answers(&behind->order, knows.copy_order);
  }
  const std::string line = fmt::format("worker {}: {}", worker, Describe(message));
  Step(Received{state_[worker].connection, std::move(message)}, line);
}

void Story::TellState(std::uint32_t worker, std::uint64_t round, bool another) {
  const std::vector<std::byte> state(16, another ? std::byte{1} : std::byte{0});
  DigestStream digest;
  digest.Update(state);
  From(worker, msg::ReplicaDigest{RoundId(round), Attempt(0), digest.Digest()});
}

void Story::Upload(std::uint32_t worker, std::uint64_t round, bool another) {
  const std::vector<std::byte> tensor(8, another ? std::byte{1} : std::byte{0});
  for (std::uint32_t t : {0u, 1u}) {
    From(worker, msg::StateChunk{RoundId(round), t, 0, t == 1, tensor});
  }
}

void Story::Saved(std::uint64_t round, const std::string& error) {
  Step(CheckpointSaved{RoundId(round), error},
       error.empty() ? "the checkpoint is on disk" : "the checkpoint cannot be written");
}

void Story::Hello(std::uint32_t worker, std::optional<std::uint32_t> wanted) {
  Connect(worker);
  msg::Hello hello;
  hello.version = "0.1.0";
  hello.host = "host";
  hello.device = "cpu";
  if (wanted) hello.wanted = WorkerId(*wanted);
  From(worker, hello);
}

void Story::Ready(std::uint32_t worker, bool ucx, const std::string& slowdowns) {
  msg::Ready ready;
  ready.transports = {{"ucx", ucx ? "u" : "", ucx ? "" : "libucp.so was not found"},
                      {"tcp", "t", ""}};
  ready.dataset_digest = "abc";
  ready.train_samples = options_.train_samples;
  ready.test_samples = options_.test_samples;
  ready.parameter_count = 2;
  ready.state_tensors = 1;
  ready.slowdowns = slowdowns;
  ready.own_parameters = options_.own_parameters;
  state_[worker].ready = ready;
  From(worker, ready);
}

void Story::ReadyWith(std::uint32_t worker, const HeldParameters& held,
                      std::vector<std::uint64_t> shards) {
  msg::Ready ready;
  ready.transports = {{"tcp", "t", ""}};
  ready.dataset_digest = "abc";
  ready.train_samples = options_.train_samples;
  ready.test_samples = options_.test_samples;
  ready.parameter_count = 2;
  ready.state_tensors = 1;
  ready.held = held;
  ready.held_shards = std::move(shards);
  state_[worker].ready = ready;
  From(worker, ready);
}

void Story::NotReached(std::uint32_t worker) {
  const msg::Form& form = state_[worker].form;
  msg::Reached reached;
  reached.formation = form.formation;
  state_[worker].to_answer = false;
  for (const auto* list : {&form.connect_to, &form.expect}) {
    for (const PeerInfo& peer : *list) {
      reached.peers.push_back({peer.member, false, "connection refused", false, "", 0});
    }
  }
  From(worker, reached);
}

void Story::Reached(std::uint32_t worker) {
  const msg::Form& form = state_[worker].form;
  state_[worker].to_answer = false;
  msg::Reached reached;
  reached.formation = form.formation;
  for (const auto* list : {&form.connect_to, &form.expect}) {
    for (const PeerInfo& peer : *list) {
      reached.peers.push_back({peer.member, true, "", options_.mapped, form.transport, 1.0});
    }
  }
  From(worker, reached);
}

void Story::Sealed(std::uint32_t slot, std::int64_t unit_ms, std::size_t units) {
  From(slot, Seal(slot, unit_ms, units));
}

msg::Sealed Story::Seal(std::uint32_t slot, std::int64_t unit_ms, std::size_t units) {
  Worker& worker = state_[slot];
  msg::Sealed sealed;
  sealed.round = worker.round;
  sealed.plan = worker.plan;
  sealed.part = PartIndex(worker.parts++);
  const std::size_t count = std::min(units, worker.queue.size());
  for (std::size_t i = 0; i < count; ++i) {
    sealed.samples += worker.queue[i].range.size();
    sealed.units.push_back({worker.queue[i], 0, unit_ms * 1'000'000});
  }
  sealed.loss_sum = static_cast<double>(sealed.samples);
  worker.queue.erase(worker.queue.begin(),
                     worker.queue.begin() + static_cast<std::ptrdiff_t>(count));
  return sealed;
}

void Story::Receipts(std::uint32_t owner, const std::vector<std::uint32_t>& contributors) {
  msg::Receipts receipts;
  receipts.round = state_[owner].round;
  receipts.map_version = state_[owner].map_version;
  for (const std::uint32_t slot : contributors) receipts.parts.push_back({Id(slot), PartIndex(0)});
  From(owner, receipts);
}

void Story::Published(std::uint32_t worker) {
  const msg::Commit& commit = *state_[worker].commit;
  From(worker, msg::Published{commit.round, commit.attempt});
}

void Story::Applied(std::uint32_t worker, std::uint64_t digest) {
  const msg::Commit& commit = *state_[worker].commit;
  From(worker, msg::Applied{commit.round, commit.attempt, 0, digest, 0});
}

void Story::Pong(std::uint32_t worker) {
  const bool was_quiet = quiet_;
  quiet_ = true;
  From(worker, msg::Pong{0, now_.time_since_epoch().count(), 0});
  quiet_ = was_quiet;
}

void Story::AnswerPing(std::uint32_t worker, const msg::RunInHand& run) {
  From(worker, msg::Pong{ping_, now_.time_since_epoch().count(), 0, 0, run});
}

void Story::Begin() {
  quiet_ = true;
  for (std::uint32_t w = 0; w < options_.workers; ++w) Hello(w);
  for (std::uint32_t w = 0; w < options_.workers; ++w) Ready(w);
  quiet_ = true;
  for (std::uint32_t w = 0; w + 1 < options_.workers; ++w) Reached(w);
  quiet_ = false;
  Say("All workers are connected.");
  Reached(options_.workers - 1);
}

void Story::AllPublishAndApply(const std::vector<std::uint32_t>& workers) {
  for (const std::uint32_t worker : workers) Published(worker);
  for (const std::uint32_t worker : workers) Applied(worker);
}

void Story::OrdinaryRounds(int rounds) {
  Say(fmt::format("{} rounds go by, so that it is known how long an owner takes.", rounds));
  const bool was_quiet = quiet_;
  quiet_ = true;
  std::vector<std::uint32_t> all(options_.workers);
  std::iota(all.begin(), all.end(), 0u);
  for (int round = 0; round < rounds; ++round) {
    for (const std::uint32_t worker : all) Sealed(worker, 1);
    AllPublishAndApply(all);
  }
  quiet_ = was_quiet;
}

}  // namespace lockstep::coordinator
