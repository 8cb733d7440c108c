// The C interface: converts arguments into the session's terms, and Work and errors into C. It
// decides only which status an error is.
#include "worker/capi/lockstep.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/host_port.h"
#include "base/job_options.h"
#include "base/log.h"
#include "base/program_options.h"
#include "base/slowdown_spec.h"
#include "base/slowdown_trace.h"
#include "worker/capi/dlpack.h"
#include "worker/compute/device_memory.h"
#include "worker/memory/exchange_memory.h"
#include "worker/memory/program_streams.h"
#include "worker/runtime/session.h"

struct lockstep_session {
  lockstep::worker::SessionPtr session;
  int process = ::getpid();
  std::string device = "cpu";
  std::shared_ptr<lockstep::worker::ExchangeMemory> memory;  // the device's; null: the host's
  std::string config;
  lockstep::worker::Work work;  // the work that was returned last
  bool in_hand = false;         // the work is not done
  std::vector<lockstep_range> ranges;
  std::vector<lockstep_metric> metrics;  // metrics of the newest committed round
  std::string policy;                    // likewise
  std::vector<std::uint64_t> slow;
  // The program's report on the present run.
  std::optional<double> waited_s;
  std::optional<std::uint64_t> samples_ahead;
  bool begun = false;  // lockstep_begin has returned LOCKSTEP_OK
  bool tried = false;  // lockstep_begin was called
};

struct lockstep_memory {
  std::shared_ptr<const void> memory;
};

namespace {

using lockstep::Error, lockstep::ErrorCode, lockstep::Status;
namespace worker = lockstep::worker;

constexpr double kLongSeconds = 1e9;  // longer times are too many nanoseconds to count

// Makes the device the calling thread's while the result exists; null where the memory is the
// host's.
std::shared_ptr<void> Visit(const lockstep_session& session) {
  return session.memory ? session.memory->streams()->Visit() : nullptr;
}

// A program's mistake is reported here: the coordinator would only close the connection.
Status End(lockstep_session* session, worker::UnitResult result) {
  if (!session->in_hand || session->work.kind != worker::Work::Kind::kTrain) {
    return Error{ErrorCode::kInvalid, "lockstep_done without a run in hand"};
  }
  const std::size_t samples = session->work.samples.size();
  if (result.samples != samples && !session->session->Cancelled().load()) {
    return Error{ErrorCode::kInvalid, fmt::format("lockstep_done of {} samples, and the run has {}",
                                                  result.samples, samples)};
  }
  if (const auto waited_s = std::exchange(session->waited_s, {})) {
    constexpr double kMost = 1e6;  // a larger value has the same effect
    result.waited = lockstep::FromSeconds(std::min(*waited_s, kMost));
  }
  result.samples_ahead = std::exchange(session->samples_ahead, {});
  const auto here = Visit(*session);
  session->session->Done(result);
  session->in_hand = false;
  return {};
}

thread_local std::string t_error;

lockstep_status Fail(const Error& error) {
  t_error = error.message;
  switch (error.code) {
    case ErrorCode::kTryAgain:
      return LOCKSTEP_TRY_AGAIN;
    case ErrorCode::kClosed:
    case ErrorCode::kIo:
      return LOCKSTEP_FAILED;
    default:
      return LOCKSTEP_INVALID;
  }
}

// No exception passes through C.
template <class F>
lockstep_status Guarded(F&& body) {
  try {
    const lockstep::Status status = body();
    return status ? LOCKSTEP_OK : Fail(status.error());
  } catch (const std::bad_alloc&) {
    return Fail({ErrorCode::kIo, "out of memory"});
  } catch (const std::exception& error) {
    return Fail({ErrorCode::kIo, error.what()});
  }
}

template <class T>
lockstep::Status CheckSize(const T* structure, const char* name) {
  if (structure->size == sizeof(T)) return {};
  return Error{ErrorCode::kInvalid,
               fmt::format("{} has {} bytes here and {} where the program was built: its header is "
                           "of another version",
                           name, sizeof(T), structure->size)};
}

std::string Text(const char* text) { return text == nullptr ? std::string() : std::string(text); }

// Other threads of the program may hold locks for ever. So only the requested handler runs, no
// other handler of the end does, and nothing is waited for. This thread may have all signals
// blocked.
[[noreturn]] void EndHung(const std::string& line, int signal) {
  spdlog::error("{}", line);
  spdlog::default_logger()->flush();
  if (signal != 0) {
    sigset_t only;
    ::sigemptyset(&only);
    ::sigaddset(&only, signal);
    ::pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
    ::pthread_kill(::pthread_self(), signal);
  }
  ::_exit(1);
}

lockstep::Status Join(const lockstep_join_options& from, lockstep_session** session) {
  worker::SessionOptions options;
  options.coordinator = Text(from.coordinator);
  options.secret_file = Text(from.secret_file);
  options.data_host = Text(from.data_host);
  options.settings = Text(from.settings);
  options.device = from.device == nullptr ? "cpu" : from.device;
  if (Status there = worker::CheckDevice(options.device); !there) {
    return Error{there.error().code, "device " + there.error().message};
  }
  options.gpu_pci = worker::PciAddress(options.device);
  if (from.wanted >= 0) {
    if (from.wanted >= lockstep::kMaxWorkers) {
      return Error{ErrorCode::kInvalid, fmt::format("there is no worker {}", from.wanted)};
    }
    options.wanted = lockstep::WorkerId(static_cast<std::uint32_t>(from.wanted));
  }
  if (from.connect_timeout_s > 0) {
    options.connect_timeout = lockstep::FromSeconds(std::min(from.connect_timeout_s, kLongSeconds));
  }
  if (auto address = lockstep::ParseHostPort(options.coordinator); !address) {
    return Error{ErrorCode::kInvalid, fmt::format("coordinator \"{}\": {}", options.coordinator,
                                                  address.error().message)};
  }
  auto specs = lockstep::ParseSlowdownLines(Text(from.slowdowns), lockstep::SlowdownFiles::kTaken);
  if (!specs) return specs.error();
  for (lockstep::SlowdownSpec& spec : *specs) {
    if (auto loaded = lockstep::LoadTrace(&spec); !loaded) return loaded.error();
  }
  options.slowdowns = *std::move(specs);
  if (from.hung_signal < 0 || from.hung_signal >= NSIG) {
    return Error{ErrorCode::kInvalid, fmt::format("hung_signal = {}", from.hung_signal)};
  }
  if (from.end_when_hung != 0) {
    options.on_hung = [signal = from.hung_signal](const std::string& line) {
      EndHung(line, signal);
    };
  }
  auto made = std::make_unique<lockstep_session>();
  made->device = options.device;
  auto joined = worker::Session::Join(std::move(options));
  if (!joined) return joined.error();
  made->session = *std::move(joined);
  made->config = lockstep::ToIni(made->session->config());
  *session = made.release();
  return {};
}

// Chooses the memory of gradients, parameters and state.
Status ChooseMemory(lockstep_session& session) {
  if (session.device == "cpu") return {};
  auto memory = worker::MakeDeviceMemory(session.device);
  if (!memory) return memory.error();
  session.memory = *std::move(memory);
  return {};
}

std::optional<double> AtLeastZero(double x) {
  return x < 0 ? std::nullopt : std::optional<double>(x);
}

// The result is empty where no tensor has a group.
worker::ParameterGroups GroupsOf(const lockstep_job& from) {
  worker::ParameterGroups groups;
  bool any = false;
  for (std::size_t i = 0; i < from.tensor_count; ++i) {
    const lockstep_tensor& tensor = from.tensors[i];
    worker::GroupRun run{.parameters = 1, .group = {}};
    for (std::size_t d = 0; d < tensor.dimensions; ++d) run.parameters *= tensor.shape[d];
    if (tensor.group != nullptr) {
      any = true;
      run.group = {tensor.group->lr_factor, AtLeastZero(tensor.group->weight_decay),
                   AtLeastZero(tensor.group->momentum)};
    }
    groups.push_back(run);
  }
  return any ? groups : worker::ParameterGroups{};
}

lockstep::Status Begin(lockstep_session& of, const lockstep_job& from) {
  if (Status chosen = ChooseMemory(of); !chosen) return chosen;
  const auto here = Visit(of);
  worker::JobDescription job;
  job.memory = of.memory;
  job.parameter_count = from.parameter_count;
  job.blocks.assign(from.blocks, from.blocks + from.block_count);
  job.finish_order.assign(from.finish_order, from.finish_order + from.block_count);
  std::uint64_t floats = 0;
  for (const std::uint64_t block : job.blocks) floats += block;
  if (floats != job.parameter_count) {
    return Error{ErrorCode::kInvalid, fmt::format("blocks of {} parameters in a model of {}",
                                                  floats, job.parameter_count)};
  }
  std::vector<std::uint32_t> order = job.finish_order;
  std::ranges::sort(order);
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i] != i) {
      return Error{ErrorCode::kInvalid, "finish_order does not name each block once"};
    }
  }
  for (std::size_t i = 0; i < from.tensor_count; ++i) {
    const lockstep_tensor& tensor = from.tensors[i];
    job.tensors.push_back({Text(tensor.name), {tensor.shape, tensor.shape + tensor.dimensions}});
  }
  job.groups = GroupsOf(from);
  if (from.initial == nullptr) return Error{ErrorCode::kInvalid, "there are no initial parameters"};
  job.initialize = [initial = from.initial](std::span<float> parameters) {
    std::copy_n(initial, parameters.size(), parameters.begin());
  };
  job.averages = from.averages != 0;
  job.own_parameters = from.own_parameters != 0;
  job.epoch_ends = from.epoch_ends != 0;
  if (!job.own_parameters) {
    job.initial_digest =
        lockstep::ToString(lockstep::DigestOf({from.initial, from.parameter_count}));
  }
  job.dataset_digest = Text(from.dataset_digest);
  if (from.makes_updates != 0) job.update_state_tensors = from.state_tensors;
  job.run_bound = {.samples = from.max_run_samples, .units = from.max_run_units};
  job.train_samples = from.train_samples;
  job.test_samples = from.test_samples;
  job.max_run_cost = from.max_run_cost;
  if (from.costs != nullptr) job.costs.assign(from.costs, from.costs + from.train_samples);
  return of.session->Begin(std::move(job));
}

Status Begun(const lockstep_session& session) {
  if (session.begun) return {};
  return Error{ErrorCode::kInvalid, "there is no work before lockstep_begin"};
}

std::int32_t Kind(worker::Work::Kind kind) {
  switch (kind) {
    case worker::Work::Kind::kTrain:
      return LOCKSTEP_TRAIN;
    case worker::Work::Kind::kEvaluate:
      return LOCKSTEP_EVALUATE;
    case worker::Work::Kind::kUpdate:
      return LOCKSTEP_UPDATE;
    case worker::Work::Kind::kEpochEnd:
      return LOCKSTEP_EPOCH_END;
    case worker::Work::Kind::kEnd:
      return LOCKSTEP_END;
    case worker::Work::Kind::kNone:
      break;
  }
  return LOCKSTEP_NONE;
}

void Tell(lockstep_session& session, lockstep_work* to) {
  const worker::Work& work = session.work;
  session.ranges.clear();
  for (const lockstep::SampleRange& range : work.ranges)
    session.ranges.push_back({range.from, range.to});
  *to = lockstep_work{};
  to->size = sizeof *to;
  to->kind = Kind(work.kind);
  to->epoch = work.epoch.value;
  to->round = work.round.value;
  to->ranges = session.ranges.data();
  to->range_count = session.ranges.size();
  to->samples = work.samples.data();
  to->sample_count = work.samples.size();
  to->units = work.units;
  to->parameters_version = work.parameters_version;
  to->parameters = work.parameters.data();
  to->gradient = work.gradient.data();
  to->device = session.memory ? worker::GpuNumber(session.device).value_or(-1) : -1;
  to->evaluate = {work.range.from, work.range.to};
  to->reason = work.reason.c_str();
  to->failed = work.failed ? 1 : 0;
  to->unfit = work.unfit ? 1 : 0;
  to->left = work.left ? 1 : 0;
  to->early = work.early ? 1 : 0;
  to->final_parameters = work.final_parameters ? 1 : 0;
  to->params_digest = work.params_digest.c_str();
  to->not_final = work.not_final.c_str();
  to->update = work.update.data();
  to->state = work.state.data();
  to->learning_rate = work.learning_rate;
  to->fraction = work.fraction;
  to->update_samples = work.update_samples;
  to->steps = work.steps;
  to->schedule_position = work.schedule_position;
  to->tells_final = work.tells_final ? 1 : 0;
  to->late = work.late ? 1 : 0;
  session.metrics.clear();
  if (!work.counted) return;
  for (const lockstep::Metric& metric : work.counted->metrics) {
    session.metrics.push_back({metric.name.c_str(), static_cast<std::int32_t>(metric.reduction),
                               lockstep::ValueOf(metric)});
  }
  to->has_counted = 1;
  to->counted_epoch = work.counted->epoch.value;
  to->counted_round = work.counted->round.value;
  to->counted_samples = work.counted->samples;
  to->counted_loss = work.counted->loss;
  to->metrics = session.metrics.data();
  to->metric_count = session.metrics.size();
  session.policy = work.counted->policy;
  session.slow = work.counted->slow;
  to->policy = session.policy.c_str();
  to->slow_workers = session.slow.data();
  to->slow_worker_count = session.slow.size();
}

}  // namespace

uint32_t lockstep_abi_version() { return LOCKSTEP_ABI_VERSION; }

const char* lockstep_version() {
  static const std::string version = lockstep::Version();
  return version.c_str();
}

const char* lockstep_error() { return t_error.c_str(); }

lockstep_status lockstep_log(const char* name, const char* level) {
  return Guarded([&]() -> lockstep::Status {
    const std::string wanted = Text(level);
    constexpr std::array kLevels = {"trace", "debug", "info", "warn", "error"};
    if (std::ranges::find(kLevels, wanted) == kLevels.end()) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("{}: expected trace, debug, info, warn or error", wanted)};
    }
    lockstep::InitLogging(Text(name), wanted);
    return {};
  });
}

lockstep_status lockstep_join(const lockstep_join_options* options, lockstep_session** session) {
  return Guarded([&]() -> lockstep::Status {
    *session = nullptr;
    if (auto checked = CheckSize(options, "lockstep_join_options"); !checked) return checked;
    return Join(*options, session);
  });
}

void lockstep_end(lockstep_session* session) {
  // A forked child has none of the session's threads, nor the device.
  if (session == nullptr || ::getpid() != session->process) return;
  if (session->memory) session->memory->streams()->Settle();
  delete session;
}

uint32_t lockstep_worker(const lockstep_session* session) {
  return session->session->self().worker.value;
}

uint32_t lockstep_incarnation(const lockstep_session* session) {
  return session->session->self().incarnation.value;
}

uint32_t lockstep_workers(const lockstep_session* session) { return session->session->workers(); }

const char* lockstep_config(const lockstep_session* session) { return session->config.c_str(); }

lockstep_status lockstep_begin(lockstep_session* session, const lockstep_job* job) {
  return Guarded([&]() -> lockstep::Status {
    if (auto checked = CheckSize(job, "lockstep_job"); !checked) return checked;
    if (session->tried) return Error{ErrorCode::kInvalid, "lockstep_begin was called twice"};
    session->tried = true;
    Status status = Begin(*session, *job);
    session->begun = status.ok();
    return status;
  });
}

lockstep_status lockstep_next(lockstep_session* session, double seconds, lockstep_work* work) {
  return Guarded([&]() -> lockstep::Status {
    if (auto checked = CheckSize(work, "lockstep_work"); !checked) return checked;
    if (Status begun = Begun(*session); !begun) return begun;
    if (session->in_hand) {
      return Error{ErrorCode::kInvalid,
                   "lockstep_next with work in hand: lockstep_done, lockstep_evaluation_done or "
                   "lockstep_update_done comes before"};
    }
    session->waited_s.reset();
    session->samples_ahead.reset();
    session->work = seconds < 0 || seconds > kLongSeconds
                        ? session->session->Next()
                        : session->session->NextWithin(lockstep::FromSeconds(seconds));
    using worker::Work;
    const Work::Kind kind = session->work.kind;
    session->in_hand =
        kind != Work::Kind::kNone && kind != Work::Kind::kEpochEnd && kind != Work::Kind::kEnd;
    const std::span<float> gradient = session->work.gradient;
    if (session->memory && session->work.kind == worker::Work::Kind::kTrain &&
        session->work.first) {
      const auto here = Visit(*session);
      session->memory->Zero(gradient.data(), gradient.size());
    }
    Tell(*session, work);
    return {};
  });
}

void lockstep_block_final(lockstep_session* session, uint32_t block) {
  session->session->BlockFinal(block);
}

lockstep_status lockstep_block_final_after(lockstep_session* session, uint32_t block,
                                           void* stream) {
  return Guarded([&]() -> lockstep::Status {
    const auto final = [of = session->session.get(), block] { of->BlockFinal(block); };
    if (session->memory) {
      session->memory->streams()->After(stream, final);
    } else {
      final();
    }
    return {};
  });
}

lockstep_status lockstep_await(lockstep_session* session, void* stream) {
  return Guarded([&]() -> lockstep::Status {
    if (session->memory) session->memory->streams()->Await(stream);
    return {};
  });
}

lockstep_status lockstep_log_metric(lockstep_session* session, const char* name,
                                    lockstep_reduction reduction, double value, uint64_t samples) {
  return Guarded([&]() -> lockstep::Status {
    const auto which = static_cast<std::uint32_t>(reduction);
    if (which >= lockstep::kReductions) {
      return Error{ErrorCode::kInvalid, fmt::format("there is no reduction {}", which)};
    }
    const double sum = reduction == LOCKSTEP_MEAN ? value * static_cast<double>(samples) : value;
    return session->session->Log(
        {Text(name), static_cast<lockstep::Reduction>(which), sum, samples});
  });
}

void lockstep_note_reading(lockstep_session* session, double waited_s, int64_t samples_ahead) {
  if (waited_s >= 0) session->waited_s = session->waited_s.value_or(0) + waited_s;
  if (samples_ahead >= 0) session->samples_ahead = static_cast<std::uint64_t>(samples_ahead);
}

lockstep_status lockstep_done(lockstep_session* session, uint64_t samples, double loss_sum) {
  return Guarded([&]() -> lockstep::Status {
    return End(session, {.samples = samples, .loss_sum = loss_sum});
  });
}

lockstep_status lockstep_done_weighted(lockstep_session* session, uint64_t samples,
                                       uint64_t divisor, double loss_sum) {
  return Guarded([&]() -> lockstep::Status {
    if (divisor > lockstep::kMaxRunDivisor) {
      return Error{ErrorCode::kInvalid, fmt::format("a run that counts for {}, of {} at most",
                                                    divisor, lockstep::kMaxRunDivisor)};
    }
    return End(session, {.samples = samples, .loss_sum = loss_sum, .divisor = divisor});
  });
}

void lockstep_evaluation_done(lockstep_session* session, double loss_sum, uint64_t correct) {
  session->session->EvaluationDone(loss_sum, correct);
  session->in_hand = false;
}

void lockstep_update_done(lockstep_session* session) {
  session->session->UpdateDone();
  session->in_hand = false;
}

lockstep_status lockstep_keep(lockstep_session* session, const float* at,
                              lockstep_memory** memory) {
  return Guarded([&]() -> lockstep::Status {
    *memory = nullptr;
    if (Status begun = Begun(*session); !begun) return begun;
    *memory = new lockstep_memory{session->session->Keep(at)};
    return {};
  });
}

lockstep_status lockstep_keep_tensor(lockstep_session* session, const float* at, uint64_t count,
                                     DLManagedTensor** tensor) {
  return Guarded([&]() -> lockstep::Status {
    *tensor = nullptr;
    if (Status begun = Begun(*session); !begun) return begun;
    const int gpu = session->memory ? worker::GpuNumber(session->device).value_or(0) : -1;
    *tensor = lockstep::capi::MakeTensor(session->session->Keep(at), at, count, gpu);
    return {};
  });
}

void lockstep_release(lockstep_memory* memory) { delete memory; }

int32_t lockstep_cancelled(const lockstep_session* session) {
  return session->session->Cancelled().load() ? 1 : 0;
}

void lockstep_interrupt(lockstep_session* session, const char* reason) {
  session->session->Interrupt(Text(reason));
}

lockstep_status lockstep_tell_costs(lockstep_session* session, uint32_t epoch, const float* costs,
                                    uint64_t count) {
  return Guarded([&]() -> lockstep::Status {
    if (Status begun = Begun(*session); !begun) return begun;
    if (costs == nullptr && count > 0) return Error{ErrorCode::kInvalid, "there are no costs"};
    return session->session->TellCosts(lockstep::Epoch(epoch), {costs, count});
  });
}

lockstep_status lockstep_away(lockstep_session* session, double at_most_seconds,
                              const char* reason) {
  return Guarded([&]() -> lockstep::Status {
    if (Status begun = Begun(*session); !begun) return begun;
    const double most = lockstep::Seconds(lockstep::kMostAbsence);
    if (!(at_most_seconds > 0 && at_most_seconds <= most)) {
      return Error{ErrorCode::kInvalid,
                   fmt::format("an absence of {:g} s: it lasts more than 0 and at most {:g}",
                               at_most_seconds, most)};
    }
    return session->session->Away(lockstep::FromSeconds(at_most_seconds), Text(reason));
  });
}

lockstep_status lockstep_back(lockstep_session* session) {
  return Guarded([&]() -> lockstep::Status {
    if (Status begun = Begun(*session); !begun) return begun;
    session->session->Back();
    return {};
  });
}

lockstep_status lockstep_stop(lockstep_session* session, const char* reason) {
  return Guarded([&]() -> lockstep::Status {
    if (Status begun = Begun(*session); !begun) return begun;
    session->session->Stop(Text(reason));
    return {};
  });
}
