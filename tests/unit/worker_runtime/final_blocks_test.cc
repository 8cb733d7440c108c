// Sessions of a whole job in this process, whose programs say from several threads, in any order,
// which blocks are final: what comes of the job is what comes of it when nobody says anything. And
// where contributions have few numbers of many, what comes of it is all gradients in the end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <latch>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/job_options.h"
#include "coordinator/shell/server.h"
#include "tests/temp_folder.h"
#include "worker/layout/layout.h"
#include "worker/runtime/round_times.h"
#include "worker/runtime/session.h"

namespace lockstep::worker {
namespace {

constexpr std::uint32_t kWorkers = 2;
constexpr std::uint64_t kRounds = 6;
constexpr std::uint32_t kThreads = 3;  // of a program, that compute and report
// With buckets of 1024 floats: cut, shared, one by itself, in an order that is not the layout's.
const std::vector<std::uint64_t> kBlocks = {5000, 1024, 100, 924, 3000, 1, 0, 2047};
const std::vector<std::uint32_t> kFinishOrder = {7, 6, 5, 4, 0, 3, 1, 2};

// What a program does.
struct Program {
  bool reports = true;
  unsigned order = 1;       // seed of the orders in which it reports
  unsigned leaves_out = 0;  // of a hundred blocks, so many are never reported
  int work = 1;             // how often it computes a gradient that is not zero
  bool nan = false;         // in round 2, in the last block
  // In round 2, when all but one block is reported; not before the other one, which says so, has
  // applied the round before: its sums would be gone too. It applies that round whether or not it
  // has units in this one.
  bool leaves_in_2 = false;
  std::latch* applied_1 = nullptr;
  std::uint64_t gradients = ~std::uint64_t{0};  // only in so many rounds; later ones are zero
  // Rounds and samples of those that it computed, but for one that is no number. Two programs may
  // have computed the same: what one holds that nothing was heard of is given to the other.
  std::set<std::pair<RoundId, std::uint32_t>>* computed = nullptr;
  std::vector<float>* parameters = nullptr;  // at the end
  bool logs = false;                         // in each run one metric more than a job can have
};

class Coordinating {
 public:
  explicit Coordinating(const JobConfig& config) {
    using coordinator::Coordinator, coordinator::Server, coordinator::RunDirectory;
    CoordinatorOptions options;
    options.listen = {"127.0.0.1", 0};
    options.workers = kWorkers;
    options.run_dir = folder_ / "run";
    options.job = config;
    coordinator::StartParameters parameters;
    parameters.workers = kWorkers;
    parameters.job_key = std::vector<std::byte>(32, std::byte{7});
    parameters.job_id = "0123456789abcdef";
    parameters.started = MonotonicNow();
    parameters.config = config;
    parameters.config_text = ToIni(config);
    auto core = Coordinator::Make(std::move(parameters));
    EXPECT_TRUE(core.ok());
    auto directory = RunDirectory::Open(options.run_dir, false);
    EXPECT_TRUE(directory.ok());
    directory_ = *std::move(directory);
    checkpoints_.emplace(directory_->checkpoints(), 1);
    auto journal = coordinator::JournalFile::Begin(directory_->path(), {}, false);
    EXPECT_TRUE(journal.ok());
    journal_ = *std::move(journal);
    auto server = Server::Open(options, "a job");
    EXPECT_TRUE(server.ok());
    server_ = *std::move(server);
    Server::Lead lead;  // nobody follows it
    lead.job.timeout = FromSeconds(config.liveness.timeout_s);
    thread_ = std::thread([this, core = *std::move(core), lead = std::move(lead)]() mutable {
      runner_ = server_->Run(std::move(lead), [&](coordinator::ActionRunner::Ports ports) {
        return std::make_unique<coordinator::ActionRunner>(
            std::move(core), *directory_, *checkpoints_, *journal_, std::nullopt, std::move(ports));
      });
    });
  }
  ~Coordinating() {
    if (thread_.joinable()) thread_.join();
  }

  std::string address() const { return server_->address(); }
  // Of each closed round, as in rounds.jsonl: how many parts it counts of each worker.
  std::vector<std::map<std::uint32_t, int>> Parts() const {
    std::vector<std::map<std::uint32_t, int>> rounds;
    std::ifstream lines(folder_ / "run/rounds.jsonl");
    const std::regex contributor(R"("worker":(\d+),"part":\d+,"weight")");
    for (std::string line; std::getline(lines, line);) {
      std::map<std::uint32_t, int>& parts = rounds.emplace_back();
      for (std::sregex_iterator at(line.begin(), line.end(), contributor), end; at != end; ++at) {
        ++parts[static_cast<std::uint32_t>(std::stoul((*at)[1]))];
      }
    }
    return rounds;
  }
  const coordinator::JobResult& Result() {
    thread_.join();
    return runner_->result();
  }

 private:
  test::TempFolder folder_;
  std::unique_ptr<coordinator::RunDirectory> directory_;
  std::optional<coordinator::CheckpointStore> checkpoints_;
  std::unique_ptr<coordinator::JournalFile> journal_;
  std::unique_ptr<coordinator::Server> server_;
  std::unique_ptr<coordinator::ActionRunner> runner_;
  std::thread thread_;
};

// Whole numbers, so that sums are exact whoever makes them of what.
float Gradient(std::uint32_t sample, std::uint64_t at) {
  return static_cast<float>((sample * 31 + at) % 17) - 8;
}

void Add(const Work& work, FloatRange block) {
  for (const std::uint32_t sample : work.samples) {
    for (std::uint64_t i = block.first; i < block.end(); ++i)
      work.gradient[i] += Gradient(sample, i);
  }
}

// The blocks in a random order, each on whichever thread is free.
void Train(Session& session, const Work& work, const Program& program, std::mt19937& draw) {
  std::vector<FloatRange> blocks;
  for (std::uint64_t at = 0; const std::uint64_t size : kBlocks) {
    blocks.push_back({at, size});
    at += size;
  }
  std::vector<std::uint32_t> order(kBlocks.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::shuffle(order, draw);
  std::vector<bool> says(kBlocks.size());
  for (std::size_t b = 0; b < says.size(); ++b) {
    says[b] = program.reports && draw() % 100 >= program.leaves_out;
  }
  const bool second = work.round == RoundId(2);
  const std::size_t count = order.size() - (program.leaves_in_2 && second ? 1 : 0);
  std::atomic<std::size_t> next{0};
  std::vector<float> final(work.gradient.begin(), work.gradient.end());
  const auto compute = [&] {
    for (std::size_t i; (i = next++) < count;) {
      const std::uint32_t block = order[i];
      for (int more = 1; more < program.work && work.round.value < program.gradients; ++more) {
        std::vector<float> scratch(work.gradient.size());
        Work elsewhere = work;
        elsewhere.gradient = scratch;
        Add(elsewhere, blocks[block]);
      }
      if (work.round.value < program.gradients) Add(work, blocks[block]);
      if (program.nan && second && block + 1 == blocks.size()) {
        work.gradient[blocks[block].first] = std::numeric_limits<float>::quiet_NaN();
      }
      std::copy_n(work.gradient.begin() + static_cast<std::ptrdiff_t>(blocks[block].first),
                  blocks[block].count,
                  final.begin() + static_cast<std::ptrdiff_t>(blocks[block].first));
      if (says[block]) session.BlockFinal(block);
    }
  };
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < kThreads; ++t) threads.emplace_back(compute);
  for (std::thread& thread : threads) thread.join();
  // What was said to be final may go, and can still be read. By their bits: some are no numbers.
  EXPECT_EQ(std::memcmp(final.data(), work.gradient.data(), work.gradient.size_bytes()), 0);
  if (program.computed == nullptr || (program.nan && second)) return;
  if (work.round.value >= program.gradients) return;
  for (const std::uint32_t sample : work.samples) program.computed->emplace(work.round, sample);
}

// "" where it has left. The digest of the job's last parameters.
std::string RunWorker(const std::string& coordinator, std::uint32_t worker,
                      const Program& program) {
  SessionOptions options;
  options.coordinator = coordinator;
  options.wanted = WorkerId(worker);
  if (program.applied_1 != nullptr && !program.leaves_in_2) {
    options.on_round = [&](const RoundTimes& times) {
      if (times.round >= RoundId(1) && !program.applied_1->try_wait()) {
        program.applied_1->count_down();
      }
    };
  }
  auto session = Session::Join(std::move(options));
  if (!session) return session.error().message;
  JobDescription job;
  job.blocks = kBlocks;
  job.finish_order = kFinishOrder;
  for (const std::uint64_t size : kBlocks) job.parameter_count += size;
  job.initialize = [](std::span<float> parameters) { std::ranges::fill(parameters, 0.0f); };
  job.dataset_digest = "numbers";
  job.train_samples = 512;
  if (Status begun = (*session)->Begin(std::move(job)); !begun) return begun.error().message;
  std::mt19937 draw(program.order);
  for (;;) {
    const Work work = (*session)->Next();
    switch (work.kind) {
      case Work::Kind::kEnd:
        if (program.parameters != nullptr) {
          program.parameters->assign(work.parameters.begin(), work.parameters.end());
        }
        return work.final_parameters ? work.params_digest : work.reason + work.not_final;
      case Work::Kind::kTrain:
        if (work.round == RoundId(2) && program.leaves_in_2) program.applied_1->wait();
        Train(**session, work, program, draw);
        if (program.leaves_in_2 && work.round == RoundId(2)) return "";
        for (std::size_t i = 0; program.logs && i <= kMaxMetrics; ++i) {
          const Status logged = (*session)->Log({std::to_string(i), Reduction::kSum, 1, 0});
          EXPECT_EQ(logged.ok(), i < kMaxMetrics) << i << " in round " << work.round.value;
        }
        (*session)->Done({.samples = work.samples.size(), .loss_sum = 1});
        break;
      default:
        (*session)->EvaluationDone(0, 0);
    }
  }
}

class FinalBlocks : public ::testing::Test {
 protected:
  FinalBlocks() {
    spdlog::set_level(spdlog::level::err);
    config_.job.rounds = kRounds;
    config_.job.global_batch = 64;
    config_.job.units = 16;
    config_.job.min_workers = 1;
    config_.exchange.transport = "tcp";
    config_.exchange.mapping = "off";  // who maps reads a contribution when it is in a commit
    config_.exchange.bucket_bytes = 4096;
    config_.exchange.piece_bytes = 4096;
    config_.liveness.timeout_s = 60;
  }

  std::uint64_t requeued_ = 0;  // samples, in the last job
  std::uint64_t dropped_ = 0;
  std::vector<std::map<std::uint32_t, int>> parts_;  // by round, of each worker
  // Of a job of these two.
  std::string Digest(const Program& first, const Program& second) {
    Coordinating coordinator(config_);
    std::string ends[kWorkers];
    std::thread other([&] { ends[1] = RunWorker(coordinator.address(), 1, second); });
    ends[0] = RunWorker(coordinator.address(), 0, first);
    other.join();
    const coordinator::JobResult& result = coordinator.Result();
    EXPECT_EQ(result.outcome, coordinator::JobOutcome::kCompleted) << result.reason;
    EXPECT_EQ(result.totals.rounds, config_.job.rounds);
    requeued_ = result.totals.samples_requeued;
    dropped_ = result.totals.samples_dropped;
    parts_ = coordinator.Parts();
    EXPECT_EQ(parts_.size(), config_.job.rounds);
    if (!second.leaves_in_2) {
      EXPECT_EQ(ends[0], ends[1]);
    }
    EXPECT_EQ(ends[0].size(), 64) << ends[0];
    return ends[0];
  }

  // A quarter of them, so that what is kept is sent within kToSendAll rounds without a gradient.
  // Sums of whole numbers, over samples that are a power of two: every number is exact, and the
  // parameters are the sum of all that was sent.
  static constexpr int kToSendAll = 4;
  void SendFew() {
    config_.exchange.compression = "topk";
    config_.exchange.topk_fraction = 0.25;
    config_.optimizer.name = "sgd";
    config_.optimizer.momentum = 0;
    config_.optimizer.lr = 1;
  }
  // On a busy machine a round may close without a worker that stands still, or have no units for
  // one that is slow: no program may wait for what another one does in its round. So there are more
  // rounds without a gradient than a worker needs. It has not sent all that it has kept if it was
  // in too few of them, and where samples were requeued another one has computed them too: such a
  // job does not tell.
  static constexpr std::uint64_t kWithoutGradient = 12;
  bool Tells(std::uint64_t rounds) const {
    for (std::uint32_t worker = 0; worker < kWorkers; ++worker) {
      const auto sent =
          std::count_if(parts_.begin() + static_cast<std::ptrdiff_t>(rounds), parts_.end(),
                        [&](const auto& parts) { return parts.contains(worker); });
      if (sent < kToSendAll) return false;
    }
    return requeued_ == 0;
  }
  bool HasSecondParts(std::uint64_t rounds) const {
    return std::any_of(parts_.begin(), parts_.begin() + static_cast<std::ptrdiff_t>(rounds),
                       [](const auto& parts) {
                         return std::ranges::any_of(
                             parts, [](const auto& worker) { return worker.second > 1; });
                       });
  }
  // `second_parts`: a job without them does not tell either.
  void CheckAllCounts(const Program& first, const Program& second, std::uint64_t rounds = kRounds,
                      bool second_parts = false) {
    for (int tries = 0; tries < 20; ++tries) {
      RunAllCounts(first, second, rounds);
      if (HasFatalFailure()) return;
      if (Tells(rounds) && (!second_parts || HasSecondParts(rounds))) return;
    }
    FAIL() << "none of 20 jobs told";
  }
  void RunAllCounts(Program first, Program second, std::uint64_t rounds) {
    config_.job.rounds = rounds + kWithoutGradient;
    std::set<std::pair<RoundId, std::uint32_t>> computed[kWorkers];
    std::vector<float> parameters;
    first.gradients = second.gradients = rounds;
    first.computed = &computed[0];
    second.computed = &computed[1];
    first.parameters = &parameters;
    (void)Digest(first, second);
    ASSERT_EQ(parts_.size(), config_.job.rounds);
    if (!Tells(rounds)) return;
    ASSERT_EQ(parameters.size(), std::accumulate(kBlocks.begin(), kBlocks.end(), std::size_t{0}));
    computed[0].merge(computed[1]);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      float total = 0;
      for (const auto& [round, sample] : computed[0]) total += Gradient(sample, i);
      ASSERT_EQ(parameters[i] * 64, -total) << i;
    }
  }

  JobConfig config_;
};

constexpr Program kSilent = {.reports = false};

TEST_F(FinalBlocks, AnyOrderFromAnyThreadComesToTheSame) {
  const std::string silent = Digest(kSilent, kSilent);
  for (const unsigned seed : {1u, 2u, 3u}) {
    EXPECT_EQ(Digest({.order = seed}, {.order = seed + 100}), silent) << seed;
  }
}

TEST_F(FinalBlocks, SomeThatAreNeverSaidComeWithTheEndOfTheRun) {
  const std::string silent = Digest(kSilent, kSilent);
  EXPECT_EQ(Digest({.leaves_out = 30}, {.order = 2, .leaves_out = 60}), silent);
}

TEST_F(FinalBlocks, SoDoGradientsOf16Bits) {
  config_.exchange.dtype = "bf16";
  const std::string silent = Digest(kSilent, kSilent);
  EXPECT_EQ(Digest({.order = 4}, {.order = 5, .leaves_out = 20}), silent);
}

TEST_F(FinalBlocks, SoDoFewNumbersOfMany) {
  SendFew();
  const std::string silent = Digest(kSilent, kSilent);
  EXPECT_EQ(Digest({.order = 4}, {.order = 5, .leaves_out = 20}), silent);
  config_.exchange.mapping = "auto";
  EXPECT_EQ(Digest({.order = 4}, {.order = 5, .leaves_out = 20}), silent);
  config_.exchange.topk_fraction = 0.5;
  EXPECT_NE(Digest(kSilent, kSilent), silent);
}

TEST_F(FinalBlocks, OfFewNumbersEveryGradientCountsInTheEnd) {
  SendFew();
  CheckAllCounts({.order = 4}, {.order = 5});
}

// The contribution is left out; what was kept before it is not.
TEST_F(FinalBlocks, OfFewNumbersAContributionThatIsLeftOutDoesNot) {
  SendFew();
  config_.job.on_nan = "skip";
  CheckAllCounts({.order = 4, .nan = true}, {.order = 5});
}

TEST_F(FinalBlocks, OfFewNumbersSecondPartsCountToo) {
  SendFew();
  config_.policy.name = "full+flexrr";
  // In fewer rounds than after which shares go by speed.
  CheckAllCounts({.order = 6}, {.order = 7, .work = 20}, 3, true);
}

// Most runs are not the last ones of a share there, and which is may be decided within one.
TEST_F(FinalBlocks, RunsThatAreNotTheLastOfTheirShareAreSaidInVain) {
  config_.policy.name = "full+flexrr";
  // A unit that comes when all have sealed both parts is done in the next round, and in no round
  // where that was the last one. Those updates are others then, so such a job does not tell.
  const auto digest = [&](const Program& first, const Program& second) {
    for (int tries = 0; tries < 20; ++tries) {
      std::string found = Digest(first, second);
      if (requeued_ == 0 && dropped_ == 0) return found;
    }
    return std::string("a unit came too late for its round in each of 20 jobs");
  };
  const std::string silent = digest(kSilent, kSilent);
  EXPECT_EQ(digest({.order = 6}, {.order = 7, .work = 20}), silent);
}

TEST_F(FinalBlocks, WhatIsNoNumberCountsForNothingAlthoughItWasSaid) {
  config_.job.on_nan = "skip";
  const std::string silent = Digest({.reports = false, .nan = true}, kSilent);
  EXPECT_EQ(Digest({.order = 8, .nan = true}, {.order = 9}), silent);
  config_.exchange.mapping = "auto";  // found in the memory that it is in
  EXPECT_EQ(Digest({.order = 8, .nan = true}, {.order = 9}), silent);
  config_.exchange.algorithm = "ring";  // by the one whose it is
  EXPECT_EQ(Digest({.order = 8, .nan = true}, {.order = 9}), silent);
}

TEST_F(FinalBlocks, AMetricThatIsOneTooManyKeepsNoOtherOut) {
  const std::string silent = Digest(kSilent, kSilent);
  EXPECT_EQ(Digest({.reports = false, .logs = true}, kSilent), silent);
}

// Its units are somebody else's then, and nothing of what it said was final is in any sum.
TEST_F(FinalBlocks, WhoLeavesBeforeTheEndOfTheRunCountsForNothing) {
  const std::string silent = Digest(kSilent, kSilent);
  std::latch applied_1(1);
  EXPECT_EQ(Digest({.order = 10, .applied_1 = &applied_1},
                   {.order = 11, .leaves_in_2 = true, .applied_1 = &applied_1}),
            silent);
}

}  // namespace
}  // namespace lockstep::worker
