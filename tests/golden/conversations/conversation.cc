#include "tests/golden/conversations/conversation.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "tests/golden/conversations/describe_worker.h"
#include "tools/simulate/describe.h"

namespace lockstep::simulate {
namespace {

constexpr Duration kLatency = std::chrono::microseconds(100);
// Two buckets, so that a part is announced before it is sealed, each with a slice for three owners.
constexpr std::uint64_t kBucketFloats = 3072;
const std::vector<worker::FloatRange> kBlocks = {{0, kBucketFloats},
                                                 {kBucketFloats, kBucketFloats}};
constexpr std::uint64_t kBucketBytes = kBucketFloats * sizeof(float);
constexpr std::uint64_t kTrainSamples = 400;

Cluster::Options ClusterOptions(const ConversationOptions& options) {
  Cluster::Options cluster;
  cluster.hosts = options.mapped ? 1 : 0;
  cluster.train_samples = kTrainSamples;
  cluster.test_samples = options.test_samples;
  worker::MachineConfig& machine = cluster.machine;
  machine.piece_bytes = 1u << 20;
  machine.inline_bytes = 0;  // the exchange is to be seen
  machine.chunk_bytes = kBucketBytes;
  const worker::Timeouts timeouts = worker::TimeoutsFrom(FromSeconds(options.timeout_s));
  machine.formation_timeout = timeouts.formation;
  machine.peer_silence = timeouts.silence;
  machine.finish_timeout = FromSeconds(options.timeout_s);
  return cluster;
}

coordinator::StartParameters StartOf(const ConversationOptions& options) {
  coordinator::StartParameters start;
  start.workers = options.workers;
  start.job_id = "story";
  start.config.policy.name = options.policy;
  start.config.job.rounds = options.rounds;
  start.config.job.epochs = 0;
  start.config.job.units = options.units;
  start.config.job.global_batch = 4 * options.units;
  start.config.job.min_workers = options.min_workers;
  start.config.checkpoint.every_epochs = 0;
  start.config.checkpoint.every_rounds = options.checkpoint_every;
  start.config.evaluation.every_epochs = 0;
  start.config.liveness.timeout_s = options.timeout_s;
  start.config.exchange.mapping = options.mapped ? "auto" : "off";
  return start;
}

// What it says of a round and of the next one are two lines.
std::string Wrapped(std::string words) {
  const std::size_t plan = words.find("; plan ");
  if (plan != std::string::npos) words.replace(plan, 2, "\n             and ");
  return words;
}

}  // namespace

Time Conversation::FixedNetwork::Arrival(Time now, std::uint32_t from, std::uint32_t to,
                                         std::uint64_t bytes) {
  const Time arrives = now + kLatency + Duration(bytes);  // a byte takes a nanosecond
  const auto held = held_until.find({from, to});
  return held == held_until.end() ? arrives : std::max(arrives, held->second);
}

Duration Conversation::FixedCompute::UnitTime(WorkerId worker, Time, RoundId, Epoch, const Unit&,
                                              std::uint32_t, RandomStream&) {
  const auto factor = factors.find(worker.value);
  return std::chrono::milliseconds(10) * (factor == factors.end() ? 1 : factor->second);
}

Conversation::Conversation(std::string title, ConversationOptions options)
    : options_(std::move(options)),
      truth_(worker::Layout(kBlocks, kBucketBytes), 0),
      cluster_(ClusterOptions(options_), truth_.layout(), &network_, &compute_,
               [this](const MemberId& self) {
                 return std::make_shared<RealNumbers>(self, &truth_, &counts_);
               }),
      simulation_(
          StartOf(options_), 1, {.latency = kLatency, .jitter = {}, .coordinator_cost = {}},
          [this](WorkerHost* host) { return std::make_unique<StepWorker>(host, &cluster_); }),
      checker_({kTrainSamples, StartOf(options_).config}, &simulation_),
      text_(fmt::format("# {}\n\n", title)) {
  Attach();
  for (std::uint32_t i = 0; i < options_.workers; ++i) {
    simulation_.AddWorker(std::chrono::milliseconds(i));
  }
  while (told_.find("Start from the seed") == std::string::npos) {
    if (!RunNext()) {
      ADD_FAILURE() << "the job does not begin";
      return;
    }
  }
  quiet_ = false;
  text_ += told_;
}

void Conversation::Attach() {
  Simulation::Hooks& hooks = simulation_.hooks;
  hooks.on_event = [this](const coordinator::Event& event) { OnCoordinatorEvent(event); };
  hooks.on_send = [this](const coordinator::Send& send) { OnSend(send); };
  hooks.on_close = [this](const coordinator::Close& close) {
    checker_.OnClose(close);
    Tell(fmt::format("coordinator closes the connection to {}: {}", Names({close.connection}),
                     close.reason));
  };
  hooks.on_closed = [this](const auto& record) {
    checker_.OnClosed(*record);
    Tell("coordinator: " + coordinator::Describe(*record));
  };
  hooks.on_log = [this](const coordinator::LogLine& line) {
    Tell("coordinator logs: " + line.text);
  };
  hooks.on_evaluated = [this](const coordinator::EvaluationRecord& record) {
    Tell(fmt::format("coordinator: evaluation after round {}, accuracy {:.2f}", record.round,
                     record.accuracy));
  };
  hooks.on_checkpoint = [this](const coordinator::JobState& state) {
    checker_.OnCheckpoint(state);
    Tell(fmt::format("coordinator saves the checkpoint before round {}", state.next_round));
  };
  hooks.after_step = [this] { checker_.AfterStep(); };
  cluster_.on_event = [this](const MemberId& w, const worker::Event& e) { Tell(Describe(w, e)); };
  cluster_.on_action = [this](const MemberId& w, const worker::Action& a) { Tell(Describe(w, a)); };
}

void Conversation::Tell(const std::string& line) {
  if (line.empty()) return;
  // The time once for all that happens at it.
  const std::string clock =
      fmt::format("{:8.2f}", Seconds(simulation_.now() - Simulation::kStart) * 1000);
  const std::string told = fmt::format("{} {}\n", clock == clock_ ? "        " : clock, line);
  clock_ = clock;
  told_ += told;
  if (!quiet_) text_ += told;
}

std::string Conversation::Names(const std::vector<coordinator::ConnectionId>& connections) const {
  std::string names;
  for (const auto connection : connections) {
    const auto member = members_.find(connection);
    if (!names.empty()) names += " ";
    names += member == members_.end() ? "a newcomer" : fmt::format("{}", member->second.worker);
  }
  return names;
}

void Conversation::OnCoordinatorEvent(const coordinator::Event& event) {
  checker_.OnEvent(event);
  if (const auto* gone = std::get_if<coordinator::Disconnected>(&event)) {
    Tell(fmt::format("coordinator has lost the connection to {} ({})", Names({gone->connection}),
                     gone->reason));
  } else if (const auto* received = std::get_if<coordinator::Received>(&event)) {
    // The shell says these, not the core; all else is told where the core says it.
    const bool shell = std::holds_alternative<msg::Hello>(received->message) ||
                       std::holds_alternative<msg::Ready>(received->message);
    if (!shell) return;
    Tell(fmt::format("coordinator hears from {}: {}", Names({received->connection}),
                     coordinator::Describe(received->message)));
  }
}

void Conversation::OnSend(const coordinator::Send& send) {
  const msg::ToWorker& message = *send.message;
  if (const auto* welcome = std::get_if<msg::Welcome>(&message)) {
    members_[send.to.front()] = welcome->self;
  }
  if (const auto* start = std::get_if<msg::Start>(&message)) truth_.OnPlan(start->plan);
  if (const auto* commit = std::get_if<msg::Commit>(&message)) truth_.OnCommit(*commit);
  if (const auto* take = std::get_if<msg::TakeSums>(&message)) truth_.OnCommit(take->commit);
  checker_.OnSend(send);
  if (std::holds_alternative<msg::Ping>(message)) return;
  Tell(fmt::format("coordinator -> {}: {}", Names(send.to),
                   Wrapped(coordinator::Describe(message))));
}

bool Conversation::RunNext() {
  told_.clear();
  const bool more = simulation_.RunNext();
  const std::string breach = truth_.errors().empty() ? checker_.failure() : truth_.errors().front();
  if (!breach.empty() && !failed_) {
    failed_ = true;
    ADD_FAILURE() << breach << "\n" << text_;
    Tell("AN INVARIANT IS BROKEN: " + breach);
  }
  if (simulation_.result() != nullptr && !more) return false;
  return more && !failed_;
}

void Conversation::Say(const std::string& line) {
  text_ += fmt::format("\n{}\n", line);
  clock_.clear();
}

void Conversation::Until(const std::string& words) {
  const Time patience = simulation_.now() + std::chrono::minutes(5);
  while (RunNext()) {
    if (told_.find(words) != std::string::npos) {
      // What was waited for is told, whatever was not told on the way.
      if (quiet_) text_ += "\n" + told_;
      return;
    }
    if (simulation_.now() > patience) break;
  }
  ADD_FAILURE() << "nobody says \"" << words << "\"\n" << text_ << cluster_.Describe();
}

void Conversation::Play(Duration time) {
  const Time until = simulation_.now() + time;
  while (simulation_.queue().next() <= until && RunNext()) {
  }
}

void Conversation::PlayToTheEnd() {
  const Time patience = simulation_.now() + std::chrono::minutes(5);
  while (simulation_.now() < patience && RunNext()) {
  }
  if (simulation_.result() == nullptr) {
    ADD_FAILURE() << "the job does not end\n" << text_ << cluster_.Describe();
    return;
  }
  told_.clear();
  Tell("coordinator: " + coordinator::Describe(*simulation_.result()));
}

void Conversation::Inject(FaultKind kind, std::uint32_t worker, Duration time) {
  Fault fault;
  fault.at = simulation_.now() - Simulation::kStart;
  fault.kind = kind;
  fault.machine = worker;
  fault.length = time;
  simulation_.AddFaults({fault});
  cluster_.Inject(fault);
}

void Conversation::Kill(std::uint32_t worker) {
  Tell(fmt::format("*** worker {} is killed", worker));
  Inject(FaultKind::kCrash, worker, {});
}

void Conversation::Stop(std::uint32_t worker, Duration time) {
  Tell(fmt::format("*** worker {} is stopped for {} ms", worker, Seconds(time) * 1000));
  Inject(FaultKind::kStop, worker, time);
}

void Conversation::HangReduction(std::uint32_t worker, Duration time) {
  Tell(fmt::format("*** the reduction thread of worker {} hangs for {} ms", worker,
                   Seconds(time) * 1000));
  Inject(FaultKind::kHangReduction, worker, time);
}

void Conversation::Hold(std::uint32_t from, std::uint32_t to, Duration time) {
  Tell(fmt::format("*** what {} sends {} is held up for {} ms", from, to, Seconds(time) * 1000));
  network_.held_until[{from, to}] = simulation_.now() + time;
}

}  // namespace lockstep::simulate
