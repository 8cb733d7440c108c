// Drives a worker of a Lockstep job from any training loop. The built-in trainer
// (worker/program/trainer.cc) is its first client, examples/own_loop.cc a small one.
//
// clang-format off
//   auto session = Session::Join(options);    // connects to the coordinator, receives the job's config
//   session->Begin(description);              // what is trained; forms the job with the others
//   for (;;) {
//     Work work = session->Next();            // blocks until there is something to do
//     if (work.kind == Work::Kind::kTrain) {
//       ... add the gradient SUM over work.samples to work.gradient, reading work.parameters ...
//       session->Done(result);
//     } else if (work.kind == Work::Kind::kEvaluate) {
//       ... session->EvaluationDone(...);
//     } else if (work.kind == Work::Kind::kUpdate) {  // only where optimizer.name = custom
//       ... change work.update by work.gradient, the mean, keeping what is needed in work.state ...
//       session->UpdateDone();
//     } else {
//       break;                                // kEnd
//     }
//   }
// clang-format on
//
// Threads. All calls come from one thread, the compute thread, except Interrupt and BlockFinal.
// Inside, a session has three threads of its own: control (the coordinator's channel), data (the
// transport and the core) and reduction (sums, updates, digests). The data thread serves peers
// whatever the compute thread does. A child that is forked off may do nothing with a session but
// drop it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/job_config.h"
#include "base/messages.h"
#include "base/result.h"
#include "base/slowdown_spec.h"
#include "base/time.h"
#include "worker/runtime/job_description.h"

namespace lockstep::worker {

struct MemoryAccount;
struct RoundTimes;

struct SessionOptions {
  std::string coordinator;         // "HOST:PORT"
  std::string secret_file;         // empty: none; required beyond loopback
  std::optional<WorkerId> wanted;  // a slot that this worker had before
  std::string device = "cpu";
  std::string gpu_pci;             // PCI address of that GPU, "0000:3B:00.0"; empty: unknown
  bool require_gpudirect = false;  // ends, unfit, where a peer on another host is reached otherwise
  std::string data_host;  // address that peers connect to; empty: that of the coordinator's channel
  std::map<std::string, std::string> overrides;  // config keys that differ by host, as "data.path"
  // This program's settings of the job, INI text. All workers must say the same; it holds where the
  // coordinator's own config does not (--config-from-workers), see config().
  std::string settings;
  std::vector<SlowdownSpec> slowdowns;  // those that speak of this worker hold, multiplied
  Duration connect_timeout = std::chrono::seconds(60);
  // For who measures the exchange. Each round that this worker has applied, on the data thread,
  // which waits for it; and the most memory that its buffers took, in Next, at the job's end.
  std::function<void(const RoundTimes&)> on_round;
  std::function<void(const MemoryAccount&)> on_memory_peak;
  // The coordinator has put this worker out, and the run in hand does not end: not within
  // liveness.timeout, nor twice the longest run so far. `line` says so and names the run. Called
  // once at most, on a thread of its own; a program ends its process here, so that whatever has
  // started it can start another one. Empty: nothing happens.
  std::function<void(const std::string& line)> on_hung;
};

struct Work {
  // kUpdate: a round is committed, and its update is the program's to make. All workers must come
  // to the same bits; a worker whose parameters differ from the majority's is put behind. All of
  // the update that is to outlive it, as step counts and moments, goes into `update` and `state`.
  // Checkpoints and copies for workers that join have these; what is kept elsewhere is not theirs.
  //
  // kEpochEnd (only with JobDescription::epoch_ends): all rounds of `epoch`, and of the epochs
  // before it, are in `parameters`, which stay as they are until Next is called again. It comes
  // before any work of the next epoch, also to a worker that had no units at the epoch's end. The
  // last epoch ends with kEnd.
  enum class Kind : std::uint8_t { kTrain, kEvaluate, kUpdate, kEpochEnd, kEnd, kNone };
  Kind kind = Kind::kEnd;

  RoundId round;  // kEpochEnd: the first one of a later epoch
  Epoch epoch;
  // kEpochEnd: the parameters may be later ones than the epoch's. This worker has joined since, was
  // behind and copied them, or computed asynchronously on a copy meanwhile.
  bool late = false;
  // kEvaluate: of the test set.
  SampleRange range;
  // kTrain: a run of units, to be computed together: positions in the epoch's order of samples, and
  // the indices of those samples in the training set, in that order. Draws for a sample (dropout,
  // augmentation) depend on its position alone. `units`: how many they are. Valid until Done.
  std::span<const SampleRange> ranges;
  std::span<const std::uint32_t> samples;
  std::uint32_t units = 0;
  // kTrain: what the next run is likely to be, none or of the same epoch. It is a hint for programs
  // that prepare samples while a device is at work (JobDescription has `collect` or `memory`).
  // Valid as `samples`.
  std::span<const SampleRange> next_ranges;
  std::span<const std::uint32_t> next_samples;
  // The parameters to use: of the last round, or of the evaluated one. Valid until Done,
  // EvaluationDone or, of kEpochEnd, Next. At kEnd see final_parameters.
  std::span<const float> parameters;
  // The parameters are those of every other Work of this kind with the same version.
  std::uint32_t parameters_version = 0;
  // kTrain: where the gradient sum of the round is kept; add to it. Valid until Done.
  // kUpdate: the gradient of the round, the mean over all samples that it has counted, clipped
  // where optimizer.clip says so. It may be written over.
  std::span<float> gradient;
  // kUpdate: the parameters, to be changed in place, and the state
  // (JobDescription::update_state_tensors), which nobody else reads or writes until UpdateDone.
  std::span<float> update;
  std::span<float> state;
  // kUpdate: the rate by the schedule; the fraction of a step that the update is (samples /
  // job.global_batch with optimizer.linear_scaling, else 1); how many samples it is of. Then
  // the sum of all fractions so far, this one included, rounded up.
  float learning_rate = 0;
  float fraction = 1;
  std::uint64_t update_samples = 0;
  std::uint64_t steps = 0;
  // kTrain, kUpdate: where the schedule is before this round: updates of whole rounds. In a job
  // that ends by its epochs it goes by the samples that were counted, however many rounds those
  // took.
  double schedule_position = 0;
  // kTrain: nothing was added to that sum yet, it begins at zero.
  bool first = false;
  // kTrain: somebody gains by BlockFinal in this run. It may be called all the same.
  bool tells_final = true;
  // The newest round that this worker knows to be committed, and what it has counted: samples, the
  // mean loss over them, and what programs have logged of them (Session::Log). Beside a run of
  // round r it is round r - 1, on all workers alike; where all of a round were fenced it may be
  // newer. At kEpochEnd it is the epoch's last round, unless that is late. nullopt: there is none
  // yet.
  struct Counted {
    RoundId round;
    Epoch epoch;
    std::uint64_t samples = 0;
    double loss = 0;
    std::vector<Metric> metrics;
    // The policy that was in force, and the workers whose units took much longer than is usual: 1.5
    // times the median or more, as the coordinator sees it.
    std::string policy;
    std::vector<std::uint64_t> slow;
  };
  std::optional<Counted> counted = std::nullopt;

  // kEnd: why, and whether the job failed.
  std::string reason;
  bool failed = false;
  bool unfit = false;  // failed, because this worker's host or options do not allow it to take part
  bool left = false;   // this worker left before the job's end: Interrupt, or it was asked to
  // kEnd: `parameters` (where Begin had come so far; until the session ends) are those that the job
  // ended with, on all its workers the same bits. `params_digest` is their SHA-256 in hex, as in
  // summary.json (empty where the coordinator did not wait for it). Else `not_final` says why not.
  bool final_parameters = false;
  std::string params_digest = {};
  std::string not_final = {};
  bool early = false;  // kEnd: not all of the job's rounds were done, and it has not failed
};

// Of a run.
struct UnitResult {
  std::uint64_t samples = 0;
  double loss_sum = 0;
  // The count of the gradient sum and the loss sum in the round's mean: the mean is both sums
  // divided by this one over all runs that are committed. With nullopt it is the samples; give
  // tokens where the loss is one of tokens. At most kMaxRunDivisor; 0 for a run that counts for
  // nothing.
  std::optional<std::uint64_t> divisor = std::nullopt;
  // For people who watch the job, and for what its stragglers are slow at. Of the time since Next
  // gave the run, how long the program waited for the samples, and how many lie ready for later
  // runs. With nullopt it does not say.
  std::optional<Duration> waited = std::nullopt;
  std::optional<std::uint64_t> samples_ahead = std::nullopt;
};

class Session;

// Ends a session; leaves the job if it is still on. In a child that was forked off meanwhile (a
// data loader's worker that returns from main) it does nothing. The session's threads are not
// there, and its locks may be held for ever.
class SessionEnd {
 public:
  SessionEnd();
  void operator()(Session* session) const;

 private:
  int process_;  // which may end it
};
using SessionPtr = std::unique_ptr<Session, SessionEnd>;

class Session {
 public:
  // Connects (bounded retry), proves the secret and receives the config. Errors are one line for
  // people.
  static Result<SessionPtr> Join(SessionOptions options);
  virtual ~Session() = default;

  virtual const JobConfig& config() const = 0;  // overrides applied
  virtual MemberId self() const = 0;
  virtual std::uint32_t workers() const = 0;  // of the job

  // Allocates the buffers, starts the transports and tells the coordinator that this worker is
  // ready.
  virtual Status Begin(JobDescription description) = 0;

  // Blocks until there is a run of units, a range to evaluate, or the end.
  Work Next() { return NextWithin(Duration::max()); }
  // The same for at most so long, then kNone: for a loop that has to look after other things too,
  // as an interpreter after Ctrl-C.
  virtual Work NextWithin(Duration limit) = 0;
  // Whether the run in hand is the last of its contribution, decided as late as can be: work that
  // is given to this worker until then still belongs to it. To be asked when the first block's
  // gradient is about to become final. Once true it stays true until Done.
  virtual bool EndsPart() = 0;
  // The gradient of a block (index into JobDescription::blocks) does not change any more in this
  // run; without effect where the run is not the last of its contribution (EndsPart). In any order,
  // at most once in a run; from any thread, several at once too, before Done is called. Optional:
  // what was not reported counts as final at Done.
  virtual void BlockFinal(std::uint32_t block) = 0;
  // The run is done, or was broken off because Cancelled() turned true. Paces the run where the
  // job emulates unit times or this worker is slowed down.
  virtual void Done(const UnitResult& result) = 0;
  // In a run, before Done: a number about its samples. A mean is given as its sum over `samples` of
  // them, and divided by all samples of the round for which it was logged. Each counts as often as
  // its gradient, which is once or not at all. Refused with one line: a name that is empty, too
  // long, not printable or beyond kMaxMetrics of them, or one that was logged in this run. Refused
  // too: a mean over more samples than the run has. Of more names in a round, over all workers,
  // those that come last are left out.
  virtual Status Log(Metric metric) = 0;
  // `correct`: of the samples of Work::range, at most all.
  virtual void EvaluationDone(double loss_sum, std::uint64_t correct) = 0;
  // The update is made: peers may be given the state from here on.
  virtual void UpdateDone() = 0;

  // The memory of Work::parameters or Work::gradient, at `at`, stays as long as what is returned,
  // also beyond Done and the session's end. It is for programs that hand out references that they
  // do not count. Work says what is in it; after Done others write there. After Begin.
  virtual std::shared_ptr<const void> Keep(const float* at) = 0;

  // True once the result of the current run cannot count any more; a compute loop may look at it
  // between layers.
  virtual const std::atomic<bool>& Cancelled() const = 0;

  // Leaves the job: Next returns kEnd soon, and the coordinator is told this reason, the first that
  // is given. Any thread; async-signal-unsafe.
  virtual void Interrupt(std::string reason) = 0;

  // From here until Back, NextWithin or Done this thread does something else, for at most so long:
  // validates, saves, compiles. With a run in hand, whether or not it is computed, the parameters
  // stay as they are. The worker is not lost for making no progress, and what it does not do others
  // do where the policy moves work; its run may have become void then (Cancelled). After Begin.
  // Errors: a time that is not above 0 and at most kMostAbsence; it is away already.
  virtual Status Away(Duration at_most, std::string reason) = 0;
  // Without effect where it is not away.
  virtual void Back() = 0;

  // Tells the costs of an epoch's samples by position, where the program has an order of its own.
  // They take the place of JobDescription::costs for that epoch. All workers say the same, of this
  // epoch or the next one, the sooner the better. The compute thread, after Begin. Errors: as
  // CheckCosts.
  virtual Status TellCosts(Epoch epoch, std::span<const float> costs) = 0;

  // Ends the job for all workers, which has completed then, with the round that was committed last:
  // Next returns kEnd soon, with its parameters. The run in hand counts no more, also where Done is
  // called for it. The compute thread, after Begin.
  virtual void Stop(std::string reason) = 0;
};

}  // namespace lockstep::worker
