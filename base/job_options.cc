#include "base/job_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/compatibility.h"

namespace lockstep {
namespace {

constexpr std::uint32_t kMostRounds32 = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint64_t kMost64 = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint32_t kMostStaleness = 1u << 20;
constexpr std::uint32_t kMostUnits = 65536;  // a plan names each of them
constexpr std::uint32_t kMostSamples = 1u << 24;
constexpr double kDay = 86400;
constexpr std::array<std::string_view, 2> kWorkerKeys = {"data.path", "exchange.threads"};

Error Invalid(std::string message) { return {ErrorCode::kInvalid, std::move(message)}; }

// Accepts one or two names with a plus between; the registry of policies knows which names exist.
bool IsPolicyName(std::string_view text) {
  const auto is_rule = [](std::string_view rule) {
    return !rule.empty() && rule.front() >= 'a' && rule.front() <= 'z' &&
           std::ranges::all_of(rule, [](char c) {
             return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
           });
  };
  const auto plus = text.find('+');
  return is_rule(text.substr(0, plus)) &&
         (plus == std::string_view::npos || is_rule(text.substr(plus + 1)));
}

OptionType<std::string> PolicyName() {
  OptionType<std::string> type;
  type.placeholder = std::string("NAME");
  type.form = std::string(
      "a closing rule, a work rule or both joined by +, as full, backup or backup+none");
  type.parse = [form = type.form](std::string_view text) -> Result<std::string> {
    if (!IsPolicyName(text)) return Invalid("expected " + form);
    return std::string(text);
  };
  type.format = [](const std::string& value) { return value; };
  return type;
}

// The word auto stands for `value`, which may be a number that can be written as well.
OptionType<std::uint32_t> CountOr(const char* word, std::uint32_t least, std::uint32_t most,
                                  std::uint32_t value) {
  OptionType<std::uint32_t> type = Count(least, most);
  type.placeholder = fmt::format("N|{}", word);
  type.form += fmt::format(" or {}", word);
  type.parse = [count = type.parse, form = type.form, word,
                value](std::string_view text) -> Result<std::uint32_t> {
    if (text == word) return value;
    auto number = count(text);
    if (!number) return Invalid("expected " + form);
    return number;
  };
  type.format = [count = type.format, word, value](const std::uint32_t& number) {
    return number == value ? std::string(word) : count(number);
  };
  return type;
}

OptionType<std::uint32_t> CountOrAuto(std::uint32_t most, std::uint32_t value) {
  return CountOr("auto", 0, most, value);
}

// The word auto stands for `value`, which is no time.
OptionType<double> SecondsOrAuto(double most, double value) {
  OptionType<double> type = DurationSeconds(0, most);
  type.placeholder += "|auto";
  type.form += " or auto";
  type.parse = [seconds = type.parse, form = type.form,
                value](std::string_view text) -> Result<double> {
    if (text == "auto") return value;
    auto number = seconds(text);
    if (!number) return Invalid("expected " + form);
    return number;
  };
  type.format = [seconds = type.format, value](const double& number) {
    return number == value ? std::string("auto") : seconds(number);
  };
  return type;
}

void DeclareJob(OptionTable& table, JobSection* job) {
  table.Group("[job]", "rounds, batches, workers");
  table.Add("job.seed", &job->seed, WideCount(0, kMost64),
            "Seed of initial parameters, sample order, dropout and augmentation. The same seed "
            "and the same commits give the same bits");
  table.Add("job.epochs", &job->epochs, Count(0, kMostRounds32),
            "Passes over the training set after which the job ends. 0: job.rounds counts; if both "
            "are 0, the job has 1 epoch");
  table.Add("job.rounds", &job->rounds, WideCount(0, kMost64),
            "Rounds after which the job ends; 0: job.epochs counts");
  table.Add("job.global_batch", &job->global_batch, Count(1, kMostSamples), "Samples in a round");
  table.Add(
      "job.units", &job->units, CountOrAuto(kMostUnits, 0),
      "Units of a round. A unit is the smallest work that moves between workers. auto: 4 for each "
      "worker; with a policy that moves, leaves out or shares out units 64 for each worker (8 if "
      "workers compute them one by one), up to 4096. There are more if a worker cannot compute so "
      "many samples at once, but at most one for each sample");
  table.Add(
      "job.min_workers", &job->min_workers, Count(0, kMaxWorkers),
      "With fewer workers the job waits, up to job.quorum_timeout. Workers that are late, behind "
      "or catching up count, lost ones do not. 0: --workers less those that the policy can "
      "spare; more than half of them if it moves units (flexrr, balance, auto); 1 with "
      "--config-from-workers");
  table.Add("job.max_workers", &job->max_workers, Count(0, kMaxWorkers),
            "The job begins with --workers and takes more while it runs, up to so many. The global "
            "batch stays. 0: --workers");
  table.Add("job.spares", &job->spares, Count(0, kMaxWorkers),
            "So many of the workers have the parameters and no units until others are lost");
  table.Add("job.join_timeout", &job->join_timeout_s, DurationSeconds(0.1, kDay),
            "How long the coordinator waits for --workers workers");
  table.Add("job.quorum_timeout", &job->quorum_timeout_s, DurationSeconds(0, 30 * kDay),
            "How long a begun job waits with fewer workers than job.min_workers before it fails; "
            "it can be resumed. 0s: for ever");
  table.Add("job.coordinator_timeout", &job->coordinator_timeout_s,
            SecondsOrAuto(30 * kDay, JobSection::kThreeTimeouts),
            "How long a worker whose coordinator is gone keeps its parameters and looks for the "
            "next one (--reattach). Then it ends with status 1. auto: three times "
            "liveness.timeout; 0s: it ends at once");
  table.Add("job.on_nan", &job->on_nan, Choice({"stop", "skip"}),
            "The answer to a loss or gradient that is infinite or not a number. stop: the job "
            "ends with status 1 and names the worker and the samples. skip: the contribution is "
            "left out, and its samples are dropped for the epoch; rounds.jsonl records them");
}

void DeclareModel(OptionTable& table, ModelSection* model) {
  table.Group("[model]", "the model");
  table.Add("model.name", &model->name, Choice({"softmax", "mlp", "cnn"}), "Kind of model");
  table.Add("model.widths", &model->widths, Counts(1, 1u << 16, 32),
            "Units of each hidden layer, from input to output");
  table.Add("model.dropout", &model->dropout, Number(0, 1, true),
            "Share of hidden activations that is dropped while training");
  table.Add("model.normalization", &model->normalization, Choice({"none", "layer"}),
            "Normalization after each hidden layer");
}

void DeclareData(OptionTable& table, DataSection* data) {
  table.Group("[data]", "the data");
  table.Add("data.format", &data->format, Choice({"idx", "cifar10", "synthetic"}),
            "idx: the four usual files of MNIST and Fashion-MNIST, plain or .gz; cifar10: the "
            "binary batches; synthetic: made from the seed, no files");
  table.Add("data.path", &data->path, Text("DIR", "a folder"),
            "Folder with the dataset's files; each worker may override it");
  table.Add("data.digest", &data->digest, Text("DIGEST", "a digest as in summary.json"),
            "Digest that the data of all workers must have, from an earlier job's dataset_digest "
            "in summary.json; empty: the majority's");
  table.Add("data.synthetic_train", &data->synthetic_train, Count(1, kMostSamples),
            "Training samples of the synthetic dataset");
  table.Add("data.synthetic_test", &data->synthetic_test, Count(1, kMostSamples),
            "Test samples of the synthetic dataset");
  table.Add("data.synthetic_features", &data->synthetic_features, Count(1, 1u << 16),
            "Numbers in a synthetic sample");
  table.Add("data.synthetic_classes", &data->synthetic_classes, Count(2, 1u << 16),
            "Classes of the synthetic dataset");
  table.Add("data.augment", &data->augment, Choice({"none", "shift", "shift-flip"}),
            "Augmentation of training images: shift by a few pixels, mirror left and right");
}

void DeclareCompute(OptionTable& table, ComputeSection* compute) {
  table.Group("[compute]", "computation of gradients");
  table.Add("compute.precision", &compute->precision, Choice({"fp32", "tf32", "bf16"}),
            "Type to which a GPU may round the factors of matrix products. Sums, and workers on "
            "a CPU, use FP32");
}

void DeclareOptimizer(OptionTable& table, OptimizerSection* optimizer) {
  table.Group("[optimizer]", "update of the parameters");
  table.Add("optimizer.name", &optimizer->name, Choice({"sgd", "rmsprop", "adamw", "custom"}),
            "Optimizer; custom: the workers' own program makes the update "
            "(docs/reference/c-interface.md), and "
            "of this section only lr, clip and linear_scaling count");
  table.Add("optimizer.lr", &optimizer->lr, Number(0, 1e6),
            "Learning rate for a full round of job.global_batch samples, before the schedule");
  table.Add("optimizer.momentum", &optimizer->momentum, Number(0, 1, true),
            "Momentum of sgd and rmsprop");
  table.Add("optimizer.nesterov", &optimizer->nesterov, TrueOrFalse(),
            "Nesterov's momentum, for sgd");
  table.Add("optimizer.weight_decay", &optimizer->weight_decay, Number(0, 1e6),
            "Weight decay; decoupled from the gradient in adamw");
  table.Add("optimizer.clip", &optimizer->clip, Number(0, 1e12),
            "Largest global norm of the mean gradient; longer ones are scaled down. 0: no limit");
  table.Add("optimizer.decay", &optimizer->decay, Number(0, 1, true),
            "Decay of the mean of squares, for rmsprop");
  table.Add("optimizer.epsilon", &optimizer->epsilon, Number(0, 1e6),
            "Added to the denominator of adamw, and to the square under rmsprop's root");
  table.Add("optimizer.beta1", &optimizer->beta1, Number(0, 1, true),
            "Decay of the first moment, for adamw");
  table.Add("optimizer.beta2", &optimizer->beta2, Number(0, 1, true),
            "Decay of the second moment, for adamw");
  table.Add("optimizer.replicas", &optimizer->replicas,
            CountOr("all", 1, kMaxWorkers, OptimizerSection::kAll),
            "How many workers hold each part of the optimizer's state (ZeRO-1); all: every "
            "worker. With N each worker holds and updates N / --workers of it and takes the "
            "other parameters. If all N holders of a part are lost, the job ends");
  table.Add("optimizer.linear_scaling", &optimizer->linear_scaling, TrueOrFalse(),
            "An update over fewer samples than job.global_batch is that fraction of a step");
}

void DeclareSchedule(OptionTable& table, ScheduleSection* schedule) {
  table.Group("[schedule]", "the learning rate over the job");
  table.Add("schedule.name", &schedule->name, Choice({"constant", "step", "exponential", "cosine"}),
            "constant; step: times factor every step_every updates; exponential: the same "
            "smoothly; cosine: down to final_lr at the job's end");
  table.Add("schedule.warmup", &schedule->warmup, Number(0, 1e12),
            "Updates over which the learning rate rises from 0");
  table.Add("schedule.step_every", &schedule->step_every, Number(0, 1e12),
            "Updates for one factor of step and exponential");
  table.Add("schedule.factor", &schedule->factor, Number(0, 1e6), "Factor of step and exponential");
  table.Add("schedule.final_lr", &schedule->final_lr, Number(0, 1e6),
            "Learning rate at the end of cosine");
}

void DeclarePolicy(OptionTable& table, PolicySection* policy) {
  table.Group("[policy]", "the straggler policy");
  table.Add("policy.name", &policy->name, PolicyName(),
            "A closing rule (full, backup, deadline, partial) says when a round closes; a work "
            "rule (none, flexrr, balance) says who computes what. Join one of each by +. Or take "
            "auto, which combines them; async; local, alone or with a closing rule "
            "(local+backup); or plugin");
  table.Add("policy.plugin", &policy->plugin, Text("FILE", "a shared library"),
            "Shared library with the policy named plugin (policies/plugin.h)");
  table.Group("[backup]", "closing rule backup");
  table.Add("backup.workers", &policy->backup_workers,
            CountOrAuto(kMaxWorkers, PolicySection::kAuto),
            "How many workers a round may close without: with --workers 8 and 1 here it closes "
            "over the first 7. auto: chosen from recent arrivals");
  table.Group("[deadline]", "closing rule deadline");
  table.Add("deadline.k", &policy->deadline_k, Number(0, 1000),
            "A round closes at the median of recent arrivals plus this many median absolute "
            "deviations, or later if that brings more samples per second");
  table.Add("deadline.min_contributors", &policy->deadline_min_contributors, Count(0, kMaxWorkers),
            "Least number of contributors; 0: half of --workers");
  table.Add("deadline.window", &policy->deadline_window, Count(1, 1000),
            "Rounds whose arrivals are recent");
  table.Group("[partial]", "closing rule partial");
  table.Add("partial.k", &policy->partial_k, Number(0, 1000),
            "Workers seal what they have at the median time of whole shares plus this many "
            "median absolute deviations");
  table.Add("partial.min_contributors", &policy->partial_min_contributors, Count(0, kMaxWorkers),
            "Least number of contributors; 0: half of --workers");
  table.Add("partial.window", &policy->partial_window, Count(1, 1000),
            "Rounds whose times are recent");
  table.Group("[flexrr]", "work rule flexrr");
  table.Add("flexrr.trigger", &policy->flexrr_trigger, Number(0, 1),
            "Lag behind a helper at which a worker's units begin to move, as a share of a round");
  table.Add("flexrr.first", &policy->flexrr_first, Number(0, 1),
            "The first hand-over as a share of a worker's units, at least one unit; follow-ups "
            "double");
  table.Add("flexrr.group_size", &policy->flexrr_group_size, Count(0, kMaxWorkers),
            "Workers that help each other, neighbours by id; 0: all of them");
  table.Group("[balance]", "work rule balance");
  table.Add("balance.hysteresis", &policy->balance_hysteresis, Number(0, 1),
            "Shares change only if a round becomes shorter by more than this fraction");
  table.Group("[async]", "policy async");
  table.Add("async.staleness", &policy->async_staleness,
            CountOrAuto(kMostStaleness, PolicySection::kAuto),
            "A contribution is committed at most this many commits after its work was given out; "
            "else the job waits. 0: synchronous; auto: 4 for each of --workers");
  table.Add("async.damping", &policy->async_damping, TrueOrFalse(),
            "Contributions staler than --workers commits count less: --workers / (1 + staleness)");
  table.Group("[local]", "policy local");
  table.Add("local.steps", &policy->local_steps, Count(1, kMostSamples),
            "Steps of each worker in a round, each with job.global_batch / (--workers * "
            "local.steps) samples");
  table.Add("local.rate", &policy->local_rate, Number(0, 1000),
            "Learning rate of the step from a round's old parameters to their average; 1: the "
            "average");
  table.Add("local.momentum", &policy->local_momentum, Number(0, 1, true), "Momentum of that step");
}

// While there was one type, it was called f32: a job's recorded config.ini may still contain it.
OptionType<std::string> NumberType() {
  OptionType<std::string> type = Choice({"fp32", "bf16", "fp16"});
  type.parse = [parse = std::move(type.parse)](std::string_view text) {
    return parse(text == "f32" ? "fp32" : text);
  };
  return type;
}

void DeclareExchange(OptionTable& table, ExchangeSection* exchange) {
  table.Group("[exchange]", "the all-reduce between workers");
  table.Add("exchange.transport", &exchange->transport, Choice({"auto", "ucx", "tcp"}),
            "Transport of the whole job. auto: UCX over RDMA if all workers have it, else tcp; "
            "ucx: also over TCP, open to anybody who reaches its ports");
  table.Add("exchange.encryption", &exchange->encryption, Choice({"off", "on"}),
            "on: TLS 1.3 between workers over a network, by tcp; off: anybody on the way can "
            "read and change what they send");
  table.Add("exchange.connections", &exchange->connections, Count(1, 16),
            "TCP connections between two workers; pieces are spread over them. Use more than one "
            "if one does not fill the link");
  table.Add("exchange.mapping", &exchange->mapping, Choice({"auto", "off"}),
            "auto: workers on one host read each other's mapped memory; off: they use the "
            "transport");
  table.Add(
      "exchange.memory", &exchange->memory, Choice({"auto", "host"}),
      "auto: gradients, parameters and optimizer state of a GPU worker stay in its memory; host: "
      "they go to the host's");
  table.Add(
      "exchange.algorithm", &exchange->algorithm, Choice({"direct", "ring", "tree", "auto"}),
      "All-reduce algorithm. direct: each owner takes its shard of every contribution before the "
      "commit. ring, tree: after the commit, from worker to worker; a second attempt is direct. "
      "auto: the fastest by measured links, then by measured rounds");
  table.Add("exchange.dtype", &exchange->dtype, NumberType(),
            "Type of contributions and sums on the way. Sums are made in fp32; parameters and "
            "state stay in fp32. bf16, fp16: half the bytes. In fp16 a gradient beyond 65504 is "
            "not finite");
  table.Add("exchange.rounding", &exchange->rounding, Choice({"nearest", "stochastic"}),
            "Rounding to 16 bits. nearest: ties to even; stochastic: up or down, so that the "
            "mean is right; the same job rounds alike");
  table.Add("exchange.compression", &exchange->compression, Choice({"none", "topk", "powersgd"}),
            "topk: the largest of each 1024 numbers of a gradient; powersgd: by turns one of two "
            "low-rank factors of each matrix. Error feedback adds the rest to the worker's next "
            "gradient");
  table.Add("exchange.topk_fraction", &exchange->topk_fraction, Number(0.0001, 0.5),
            "Share of numbers that topk sends; at least one");
  table.Add(
      "exchange.powersgd_rank", &exchange->powersgd_rank, Count(1, 64),
      "Rank of powersgd's factors; a matrix with an extent under twice the rank is sent whole");
  table.Add("exchange.bucket_bytes", &exchange->bucket_bytes, Bytes(4096, 1u << 30),
            "Size of a bucket of gradients, in the order in which the backward pass finishes "
            "them");
  table.Add("exchange.piece_bytes", &exchange->piece_bytes, Bytes(4096, 4u << 20),
            "Largest piece of one request");
  table.Add("exchange.window", &exchange->window, Count(1, 256),
            "Pieces under way from one peer at a time");
  table.Add("exchange.threads", &exchange->threads, CountOr("auto", 1, 256, 0),
            "Threads of a CPU worker for sums and updates. auto: OMP_NUM_THREADS, else its share "
            "of the host's processors, at most 8; each lockstep-worker may override it");
}

void DeclareRest(OptionTable& table, JobConfig* config) {
  table.Group("[emulate]", "emulation of a larger machine");
  table.Add("emulate.unit_time", &config->emulate.unit_time_s, DurationSeconds(0, 3600),
            "Least time for computing a unit; the worker sleeps for the rest. With job.units = "
            "auto it is the time of a quarter of an equal share, and of other sizes in "
            "proportion. 0s: off");
  table.Group("[liveness]", "detection of lost workers");
  table.Add("liveness.timeout", &config->liveness.timeout_s, DurationSeconds(0.1, 3600),
            "A worker that is silent for so long is lost. All other time-outs derive from this "
            "one");
  table.Group("[evaluation]", "evaluations besides the one at the end");
  table.Add("evaluation.every_epochs", &config->evaluation.every_epochs, Count(0, kMostRounds32),
            "Every so many epochs; 0: not by epochs");
  table.Add("evaluation.every_rounds", &config->evaluation.every_rounds, WideCount(0, kMost64),
            "Every so many rounds; 0: not by rounds");
  table.Group("[checkpoint]", "checkpoints besides the one at the end");
  table.Add("checkpoint.every_rounds", &config->checkpoint.every_rounds, WideCount(0, kMost64),
            "Every so many rounds; 0: not by rounds");
  table.Add("checkpoint.every_epochs", &config->checkpoint.every_epochs, Count(0, kMostRounds32),
            "Every so many epochs; 0: not by epochs");
  table.Add("checkpoint.keep", &config->checkpoint.keep, Count(1, 1u << 20),
            "Newest checkpoints to keep");
  table.Add("checkpoint.every", &config->checkpoint.every_s, DurationSeconds(0, 30 * kDay),
            "After the first round that is committed so long after the last checkpoint was begun; "
            "0s: not by time");
  table.Add("checkpoint.residuals", &config->checkpoint.residuals, TrueOrFalse(),
            "Let each worker that reaches the run directory save there, beside each checkpoint, "
            "what exchange.compression has kept back, for --resume");
  table.Add("checkpoint.rescue", &config->checkpoint.rescue, TrueOrFalse(),
            "Where no coordinator takes over within job.coordinator_timeout, let a worker that "
            "reaches the run directory save its parameters there, for --resume");
  table.Group("[journal]", "the record from which the next coordinator continues (--reattach)");
  table.Add("journal.sync", &config->journal.sync, TrueOrFalse(),
            "Bring each commit's entry to the disk before anybody hears of the commit. Then even a "
            "stop of the coordinator's machine loses none; a stop of its process never does");
  table.Group("[audit]", "the search for workers that compute wrong gradients");
  table.Add("audit.share", &config->audit.share, Number(0, 1),
            "Share of the units that a second worker computes as well; both gradients are "
            "compared. A worker whose gradients differ from two others' is put out. 0: none");
  table.Add("audit.tolerance", &config->audit.tolerance, Number(0, 1),
            "Workers with unlike devices, processors or numbers of threads may differ by so much: "
            "the norm of the difference over the gradient's. Between like ones all bits count");
}

Result<JobConfig> Read(std::span<const Setting> settings, auto&& read_file) {
  JobConfig config;
  OptionTable table;
  DeclareJobOptions(table, &config);
  for (const Setting& setting : settings) {
    if (Status set = table.Set(setting.key, setting.value); !set) return set.error();
  }
  if (Status read = read_file(table); !read) return read.error();
  if (Status checked = CheckJobConfig(config); !checked) return checked.error();
  return config;
}

}  // namespace

void DeclareJobOptions(OptionTable& table, JobConfig* config) {
  DeclareJob(table, &config->job);
  DeclareModel(table, &config->model);
  DeclareData(table, &config->data);
  DeclareCompute(table, &config->compute);
  DeclareOptimizer(table, &config->optimizer);
  DeclareSchedule(table, &config->schedule);
  DeclarePolicy(table, &config->policy);
  DeclareExchange(table, &config->exchange);
  DeclareRest(table, config);
}

Status CheckJobConfig(const JobConfig& config) {
  const JobSection& job = config.job;
  if (job.epochs != 0 && job.rounds != 0) {
    return Invalid(
        fmt::format("job.epochs = {} and job.rounds = {}: only one of them ends the job, set the "
                    "other to 0",
                    job.epochs, job.rounds));
  }
  if (job.units > job.global_batch) {
    return Invalid(
        fmt::format("job.units = {} is more than job.global_batch = {}: a unit has at "
                    "least one sample",
                    job.units, job.global_batch));
  }
  const ExchangeSection& exchange = config.exchange;
  if (exchange.piece_bytes > exchange.bucket_bytes) {
    return Invalid(fmt::format("exchange.piece_bytes = {} is more than exchange.bucket_bytes = {}",
                               exchange.piece_bytes, exchange.bucket_bytes));
  }
  if (exchange.connections > exchange.window) {
    return Invalid(
        fmt::format("exchange.connections = {} is more than exchange.window = {}: no more "
                    "connections than pieces are used at a time",
                    exchange.connections, exchange.window));
  }
  const Status fits = CheckTogether(config, {.policy = NamedPolicy(config.policy)});
  if (!fits) return fits;
  const ScheduleSection& schedule = config.schedule;
  if ((schedule.name == "step" || schedule.name == "exponential") && schedule.step_every <= 0) {
    return Invalid(
        fmt::format("schedule.name = {} needs schedule.step_every above 0", schedule.name));
  }
  if (config.optimizer.nesterov && config.optimizer.momentum == 0) {
    return Invalid("optimizer.nesterov = true needs optimizer.momentum above 0");
  }
  return {};
}

Result<JobConfig> ParseJobConfig(std::string_view text, const std::string& name,
                                 std::span<const Setting> settings) {
  return Read(settings, [&](OptionTable& table) { return table.ReadText(text, name); });
}

Result<JobConfig> LoadJobConfig(const std::string& path, std::span<const Setting> settings) {
  return Read(settings,
              [&](OptionTable& table) { return path.empty() ? Status() : table.ReadFile(path); });
}

std::string ToIni(const JobConfig& config) {
  JobConfig copy = config;
  OptionTable table;
  DeclareJobOptions(table, &copy);
  return table.ToIni();
}

std::span<const std::string_view> WorkerKeys() { return kWorkerKeys; }

std::string JobOptionsDescription() {
  JobConfig defaults;
  OptionTable table;
  DeclareJobOptions(table, &defaults);
  return table.Help();
}

std::string ConfigurationReference() {
  JobConfig defaults;
  OptionTable table;
  DeclareJobOptions(table, &defaults);
  return table.Markdown() + CompatibilityReference();
}

}  // namespace lockstep
