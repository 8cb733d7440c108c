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

// One or two names with a plus between; which names exist, the registry of policies knows.
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
  table.Group("[job]", "what is to be done");
  table.Add("job.seed", &job->seed, WideCount(0, kMost64),
            "Of initial parameters, the order of samples, dropout and augmentation; the same seed "
            "and the same commits give the same bits");
  table.Add("job.epochs", &job->epochs, Count(0, kMostRounds32),
            "Passes over the training set after which the job ends; 0: job.rounds says, and if "
            "that is 0 as well, 1 epoch");
  table.Add("job.rounds", &job->rounds, WideCount(0, kMost64),
            "Rounds after which the job ends; 0: job.epochs says");
  table.Add("job.global_batch", &job->global_batch, Count(1, kMostSamples), "Samples in a round");
  table.Add(
      "job.units", &job->units, CountOrAuto(kMostUnits, 0),
      "Units that a round's samples are cut into, the smallest work that moves between "
      "workers; auto: at most one for each sample, as many as the policy has use for: 64 for "
      "each worker, up to 4096 in all, where single units move, are left out or are shared out "
      "by speed, else 4; at least so many that each has no more samples than any worker computes "
      "at once, and 8 instead of 64, of one size, where workers compute them one by one");
  table.Add(
      "job.min_workers", &job->min_workers, Count(0, kMaxWorkers),
      "With fewer workers the job waits, up to job.quorum_timeout. A worker that is late, behind "
      "or catching up counts, a lost one does not. 0: --workers less those that the policy can "
      "spare; more than half of --workers where the policy moves units (flexrr, balance, auto). "
      "With --config-from-workers it is 1 by default");
  table.Add("job.join_timeout", &job->join_timeout_s, DurationSeconds(0.1, kDay),
            "How long the coordinator waits for --workers workers to join");
  table.Add("job.quorum_timeout", &job->quorum_timeout_s, DurationSeconds(0, 30 * kDay),
            "How long a job that has begun waits with fewer workers than job.min_workers; "
            "then it fails and says who is missing, and can be resumed. 0s: for ever");
  table.Add("job.coordinator_timeout", &job->coordinator_timeout_s,
            SecondsOrAuto(30 * kDay, JobSection::kThreeTimeouts),
            "How long a worker whose coordinator is gone keeps its parameters and looks for the "
            "next one (--reattach), before it ends with status 1; auto: three times "
            "liveness.timeout; 0s: it ends at once");
  table.Add("job.on_nan", &job->on_nan, Choice({"stop", "skip"}),
            "A contribution whose loss or gradient is infinite or not a number: stop ends the job "
            "with status 1 and names the worker and the samples, the last checkpoint stays; skip "
            "leaves the contribution out and drops its samples for the epoch, which rounds.jsonl "
            "records");
}

void DeclareModel(OptionTable& table, ModelSection* model) {
  table.Group("[model]", "what is trained");
  table.Add("model.name", &model->name, Choice({"softmax", "mlp", "cnn"}), "Kind of model");
  table.Add("model.widths", &model->widths, Counts(1, 1u << 16, 32),
            "Units of each hidden layer, from input to output");
  table.Add("model.dropout", &model->dropout, Number(0, 1, true),
            "Share of hidden activations that is dropped while training");
  table.Add("model.normalization", &model->normalization, Choice({"none", "layer"}),
            "Normalization after each hidden layer");
}

void DeclareData(OptionTable& table, DataSection* data) {
  table.Group("[data]", "what it is trained on");
  table.Add("data.format", &data->format, Choice({"idx", "cifar10", "synthetic"}),
            "idx: the four usual files of MNIST and Fashion-MNIST, plain or .gz; cifar10: the "
            "binary batches; synthetic: made from the seed, no files");
  table.Add("data.path", &data->path, Text("DIR", "a folder"),
            "Folder with the dataset's files; each worker may overrule it");
  table.Add("data.digest", &data->digest, Text("DIGEST", "a digest as in summary.json"),
            "Digest that the data of all workers must have, as an earlier job's summary.json says "
            "it (dataset_digest); empty: the one that most of the workers have");
  table.Add("data.synthetic_train", &data->synthetic_train, Count(1, kMostSamples),
            "Training samples of the synthetic dataset");
  table.Add("data.synthetic_test", &data->synthetic_test, Count(1, kMostSamples),
            "Test samples of the synthetic dataset");
  table.Add("data.synthetic_features", &data->synthetic_features, Count(1, 1u << 16),
            "Numbers in a synthetic sample");
  table.Add("data.synthetic_classes", &data->synthetic_classes, Count(2, 1u << 16),
            "Classes of the synthetic dataset");
  table.Add("data.augment", &data->augment, Choice({"none", "shift", "shift-flip"}),
            "What is done to training images: shift by a few pixels, mirror left and right");
}

void DeclareCompute(OptionTable& table, ComputeSection* compute) {
  table.Group("[compute]", "how gradients are computed");
  table.Add("compute.precision", &compute->precision, Choice({"fp32", "tf32", "bf16"}),
            "What a GPU may round the factors of matrix products to; sums are FP32 always. Workers "
            "on a CPU compute in FP32");
}

void DeclareOptimizer(OptionTable& table, OptimizerSection* optimizer) {
  table.Group("[optimizer]", "how parameters follow the gradient");
  table.Add("optimizer.name", &optimizer->name, Choice({"sgd", "rmsprop", "adamw", "custom"}),
            "Optimizer; custom: the workers' own program makes the update "
            "(docs/reference/c-interface.md), and "
            "of this section only lr, clip and linear_scaling count");
  table.Add("optimizer.lr", &optimizer->lr, Number(0, 1e6),
            "Learning rate for a full round of job.global_batch samples, before the schedule");
  table.Add("optimizer.momentum", &optimizer->momentum, Number(0, 1, true),
            "Momentum of sgd and rmsprop");
  table.Add("optimizer.nesterov", &optimizer->nesterov, TrueOrFalse(),
            "Nesterov's form of momentum, of sgd");
  table.Add("optimizer.weight_decay", &optimizer->weight_decay, Number(0, 1e6),
            "Weight decay; decoupled from the gradient in adamw");
  table.Add("optimizer.clip", &optimizer->clip, Number(0, 1e12),
            "Largest global norm of the mean gradient, longer ones are scaled down; 0: no limit");
  table.Add("optimizer.decay", &optimizer->decay, Number(0, 1, true),
            "Decay of the mean of squares, of rmsprop");
  table.Add("optimizer.epsilon", &optimizer->epsilon, Number(0, 1e6),
            "Added to the denominator of adamw, and of rmsprop to the square under its root");
  table.Add("optimizer.beta1", &optimizer->beta1, Number(0, 1, true),
            "Decay of the first moment, of adamw");
  table.Add("optimizer.beta2", &optimizer->beta2, Number(0, 1, true),
            "Decay of the second moment, of adamw");
  table.Add("optimizer.replicas", &optimizer->replicas,
            CountOr("all", 1, kMaxWorkers, OptimizerSection::kAll),
            "How many workers hold each part of the optimizer's state; all: everybody holds all of "
            "it. With N each worker holds N / --workers of the state, makes that part of the "
            "update, and the others take the parameters from it; when all N that hold a part are "
            "lost at once the job ends");
  table.Add("optimizer.linear_scaling", &optimizer->linear_scaling, TrueOrFalse(),
            "An update over fewer samples than job.global_batch is that fraction of a step");
}

void DeclareSchedule(OptionTable& table, ScheduleSection* schedule) {
  table.Group("[schedule]", "how the learning rate changes in the course of the job");
  table.Add("schedule.name", &schedule->name, Choice({"constant", "step", "exponential", "cosine"}),
            "constant; step: times factor every step_every updates; exponential: the same "
            "smoothly; cosine: down to final_lr at the end of the job");
  table.Add("schedule.warmup", &schedule->warmup, Number(0, 1e12),
            "Updates over which the learning rate rises from 0");
  table.Add("schedule.step_every", &schedule->step_every, Number(0, 1e12),
            "Updates for one factor of step and exponential");
  table.Add("schedule.factor", &schedule->factor, Number(0, 1e6), "Factor of step and exponential");
  table.Add("schedule.final_lr", &schedule->final_lr, Number(0, 1e6),
            "Learning rate at the end of cosine");
}

void DeclarePolicy(OptionTable& table, PolicySection* policy) {
  table.Group("[policy]", "what is done about stragglers");
  table.Add("policy.name", &policy->name, PolicyName(),
            "When a round closes (full, backup, deadline, partial) and who computes what (none, "
            "flexrr, balance), joined by +; or auto, which combines them; async; local, alone or "
            "with a closing rule (local+backup); or plugin");
  table.Add("policy.plugin", &policy->plugin, Text("FILE", "a shared library"),
            "Shared library with the policy of the name plugin (policies/plugin.h)");
  table.Group("[backup]", "of the closing rule backup");
  table.Add("backup.workers", &policy->backup_workers,
            CountOrAuto(kMaxWorkers, PolicySection::kAuto),
            "How many workers a round does without: with --workers 8 and 1 here it closes over "
            "the first 7; auto: chosen in the course of the job from when contributions arrive");
  table.Group("[deadline]", "of the closing rule deadline");
  table.Add("deadline.k", &policy->deadline_k, Number(0, 1000),
            "A round closes at the median of the recent arrivals plus so many of their median "
            "absolute deviations");
  table.Add("deadline.min_contributors", &policy->deadline_min_contributors, Count(0, kMaxWorkers),
            "Not with fewer contributors; 0: half of --workers");
  table.Add("deadline.window", &policy->deadline_window, Count(1, 1000),
            "Rounds whose arrivals count as recent");
  table.Group("[partial]", "of the closing rule partial");
  table.Add("partial.k", &policy->partial_k, Number(0, 1000),
            "Workers seal what they have at the median of the times that whole shares took, plus "
            "so many median absolute deviations");
  table.Add("partial.min_contributors", &policy->partial_min_contributors, Count(0, kMaxWorkers),
            "Not with fewer contributors; 0: half of --workers");
  table.Add("partial.window", &policy->partial_window, Count(1, 1000),
            "Rounds whose times count as recent");
  table.Group("[flexrr]", "of the work rule flexrr");
  table.Add("flexrr.trigger", &policy->flexrr_trigger, Number(0, 1),
            "How far behind a helper a worker is when its work begins to move, as a share of a "
            "round");
  table.Add("flexrr.first", &policy->flexrr_first, Number(0, 1),
            "The first hand-over as a share of a worker's units, at least one unit; follow-ups "
            "double");
  table.Add("flexrr.group_size", &policy->flexrr_group_size, Count(0, kMaxWorkers),
            "Workers that help each other, neighbours by id; 0: all of them");
  table.Group("[balance]", "of the work rule balance");
  table.Add("balance.hysteresis", &policy->balance_hysteresis, Number(0, 1),
            "Shares stay until others would make a round shorter by more than this share of it");
  table.Group("[async]", "of the policy async");
  table.Add("async.staleness", &policy->async_staleness,
            CountOrAuto(kMostStaleness, PolicySection::kAuto),
            "A contribution is in a commit at most so many commits after its work was given out, "
            "else the job waits for it; 0: synchronous; auto: 4 for each of --workers");
  table.Add("async.damping", &policy->async_damping, TrueOrFalse(),
            "Contributions that are staler than --workers commits count less: --workers / (1 + "
            "staleness)");
  table.Group("[local]", "of the policy local");
  table.Add("local.steps", &policy->local_steps, Count(1, kMostSamples),
            "Steps that each worker takes on its own in a round, each with job.global_batch / "
            "(--workers * local.steps) samples");
  table.Add("local.rate", &policy->local_rate, Number(0, 1000),
            "Learning rate of the step from a round's old parameters to their average; 1 takes the "
            "average as it is");
  table.Add("local.momentum", &policy->local_momentum, Number(0, 1, true), "Momentum of that step");
}

// While there was one type it was called f32: a job's recorded config.ini may say so.
OptionType<std::string> NumberType() {
  OptionType<std::string> type = Choice({"fp32", "bf16", "fp16"});
  type.parse = [parse = std::move(type.parse)](std::string_view text) {
    return parse(text == "f32" ? "fp32" : text);
  };
  return type;
}

void DeclareExchange(OptionTable& table, ExchangeSection* exchange) {
  table.Group("[exchange]", "how gradients travel between the workers");
  table.Add("exchange.transport", &exchange->transport, Choice({"auto", "ucx", "tcp"}),
            "Transport of the whole job; auto: UCX over RDMA where all workers have it, else tcp; "
            "ucx: over TCP too, which lets in whoever reaches its ports");
  table.Add("exchange.encryption", &exchange->encryption, Choice({"off", "on"}),
            "on: what workers send each other over a network is encrypted and cannot be changed on "
            "its way (TLS 1.3); the transport is tcp then. off: whoever is on the way can read and "
            "change it");
  table.Add("exchange.connections", &exchange->connections, Count(1, 16),
            "Of tcp: connections between two workers, over which pieces are spread. More than one "
            "where a single one does not fill the link, as where a network limits each");
  table.Add("exchange.mapping", &exchange->mapping, Choice({"auto", "off"}),
            "auto: workers on one host read out of each other's mapped memory; off: they use the "
            "transport as well");
  table.Add(
      "exchange.memory", &exchange->memory, Choice({"auto", "host"}),
      "auto: the gradients, parameters and optimizer state of a worker that computes on a GPU "
      "stay in its memory; host: they are brought to the host's");
  table.Add(
      "exchange.algorithm", &exchange->algorithm, Choice({"direct", "ring", "tree", "auto"}),
      "direct: each owner takes its shard of every contribution, before the commit, and sums it at "
      "once. After the commit, from contributor to contributor, and the sums back: ring along all "
      "of them, tree up and down two trees. A second attempt is always direct. auto: what should "
      "be "
      "the quickest over the measured links, and then what is");
  table.Add("exchange.dtype", &exchange->dtype, NumberType(),
            "Type that contributions and sums of gradients lie and travel in; sums are made in "
            "fp32, and parameters and state stay in it. bf16, fp16: half the bytes; a gradient "
            "beyond 65504 is not finite in fp16");
  table.Add("exchange.rounding", &exchange->rounding, Choice({"nearest", "stochastic"}),
            "How a number goes to 16 bits. nearest: to the nearest, in a tie to the even one; "
            "stochastic: to one of the two beside it, the nearer the likelier, so that on average "
            "nothing is lost; the same job makes the same choices");
  table.Add("exchange.compression", &exchange->compression, Choice({"none", "topk", "powersgd"}),
            "topk: of each 1024 numbers of a gradient a contribution has those of the largest "
            "magnitude; powersgd: of each matrix of a gradient it has, by turns, one of two "
            "factors of low rank. What it has not is added to the worker's next gradient");
  table.Add("exchange.topk_fraction", &exchange->topk_fraction, Number(0.0001, 0.5),
            "Of topk: how many of them, as a share; at least one");
  table.Add(
      "exchange.powersgd_rank", &exchange->powersgd_rank, Count(1, 64),
      "Of powersgd: the factors' rank; a matrix with an extent under twice as much goes as it "
      "is");
  table.Add("exchange.bucket_bytes", &exchange->bucket_bytes, Bytes(4096, 1u << 30),
            "Gradients are cut into buckets of about this size, in the order in which the "
            "backward pass finishes them");
  table.Add("exchange.piece_bytes", &exchange->piece_bytes, Bytes(4096, 4u << 20),
            "Largest piece that is asked for at once");
  table.Add("exchange.window", &exchange->window, Count(1, 256),
            "Pieces under way from one peer at a time");
  table.Add("exchange.threads", &exchange->threads, CountOr("auto", 1, 256, 0),
            "Threads that a worker on a CPU sums gradients and updates parameters with. auto: as "
            "many as OMP_NUM_THREADS says to it, else its share of the host's processors, at most "
            "8; each lockstep-worker may overrule it");
}

void DeclareRest(OptionTable& table, JobConfig* config) {
  table.Group("[emulate]", "make a small machine behave like a larger one");
  table.Add("emulate.unit_time", &config->emulate.unit_time_s, DurationSeconds(0, 3600),
            "Computing a unit takes at least this long, the rest is spent asleep; with job.units = "
            "auto a quarter of an equal share does, and others in proportion; 0s: off");
  table.Group("[liveness]", "when a worker counts as lost");
  table.Add("liveness.timeout", &config->liveness.timeout_s, DurationSeconds(0.1, 3600),
            "The one time-out: who is silent for so long is lost; all others are derived from it");
  table.Group("[evaluation]", "when the test set is evaluated, besides the end");
  table.Add("evaluation.every_epochs", &config->evaluation.every_epochs, Count(0, kMostRounds32),
            "After every so many epochs; 0: not by epochs");
  table.Add("evaluation.every_rounds", &config->evaluation.every_rounds, WideCount(0, kMost64),
            "After every so many rounds; 0: not by rounds");
  table.Group("[checkpoint]", "when a checkpoint is written, besides the end");
  table.Add("checkpoint.every_rounds", &config->checkpoint.every_rounds, WideCount(0, kMost64),
            "After every so many rounds; 0: not by rounds");
  table.Add("checkpoint.every_epochs", &config->checkpoint.every_epochs, Count(0, kMostRounds32),
            "After every so many epochs; 0: not by epochs");
  table.Add("checkpoint.keep", &config->checkpoint.keep, Count(1, 1u << 20),
            "How many of the newest checkpoints stay");
  table.Add("checkpoint.every", &config->checkpoint.every_s, DurationSeconds(0, 30 * kDay),
            "After the first round that is committed so long after the last checkpoint was begun; "
            "0s: not by time");
  table.Group("[journal]", "what a coordinator that takes over goes on from (--reattach)");
  table.Add("journal.sync", &config->journal.sync, TrueOrFalse(),
            "Bring each commit's entry to the disk before anybody hears of the commit: then a stop "
            "of the coordinator's machine, too, loses none; a stop of its process never does");
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
