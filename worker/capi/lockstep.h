/* A worker of a Lockstep job from any language: the C form of worker/runtime/session.h, whose head
 * shows the loop. docs/reference/c-interface.md has an example.
 *
 * Versions. LOCKSTEP_ABI_VERSION changes when a program that was built with another one would not
 * work: compare it with lockstep_abi_version() before anything else. The structures with a `size`
 * (lockstep_join_options, lockstep_job, lockstep_work) begin with it, and the caller sets it: one
 * that the library does not know is an error. The others have none.
 *
 * Errors. Functions that can fail return a lockstep_status; lockstep_error() then has one line for
 * people, of the last failure in the calling thread, until its next one. A programmer's mistake in
 * a function without a status, such as lockstep_update_done without an update, ends the process
 * with a message.
 *
 * Threads. All calls on a session come from one thread, but lockstep_interrupt, lockstep_cancelled,
 * lockstep_block_final and lockstep_block_final_after, which any thread may call; another thread
 * may call lockstep_join. A forked child may do nothing with a session; lockstep_end does nothing
 * there.
 *
 * Texts are UTF-8 and end with a zero byte. Memory that a function returns by pointer belongs to
 * the library.
 */
#ifndef LOCKSTEP_H
#define LOCKSTEP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LOCKSTEP_ABI_VERSION 1u

typedef enum lockstep_status {
  LOCKSTEP_OK = 0,
  /* The numbers are the exit statuses of lockstep-worker. */
  LOCKSTEP_FAILED = 1,    /* the job has failed, or the system refused */
  LOCKSTEP_INVALID = 2,   /* an argument or setting is wrong, or was refused */
  LOCKSTEP_TRY_AGAIN = 3, /* nothing is wrong: the job has no place for this worker now */
} lockstep_status;

typedef struct lockstep_session lockstep_session;

uint32_t lockstep_abi_version(void);
const char* lockstep_version(void); /* of the software: "0.1.0" */
const char* lockstep_error(void);

/* The library's own log lines, on standard error: their name and the least level that is shown
 * (trace, debug, info, warn, error). It holds for the whole process; call it before the first
 * session. */
lockstep_status lockstep_log(const char* name, const char* level);

typedef struct lockstep_join_options {
  size_t size;             /* sizeof(lockstep_join_options) */
  const char* coordinator; /* "HOST:PORT" */
  const char* secret_file; /* NULL: none; required beyond loopback */
  const char*
      data_host; /* address that peers connect to; NULL: the one used to reach the coordinator */
  /* This program's settings of the job, INI text; NULL: none. They must be equal on all workers. */
  const char* settings;
  const char* slowdowns;    /* slow-downs for experiments: one SPEC a line; NULL: none */
  int64_t wanted;           /* the slot that this worker wants; -1: any */
  double connect_timeout_s; /* 0: 60 */
  /* The place where the program computes, and of gradients, parameters and state. NULL or "cpu" is
   * the host's memory; "cuda:0" .. is that GPU's, see "A GPU's memory" below. */
  const char* device;
  /* Not 0: ends the process, with status 1, when the coordinator has evicted this worker and the
   * present run does not end. The run must exceed both liveness.timeout and twice the longest run
   * so far. A line on stderr reports it and names the run. A hung thread cannot be ended in another
   * way, and the launcher can start another process. */
  int32_t end_when_hung;
  /* With end_when_hung: a signal that a thread of the library raises after the line and before the
   * process ends. Its handler can report where the program hangs. 0: none. */
  int32_t hung_signal;
} lockstep_join_options;

/* Connects to the coordinator and receives the job's config. */
lockstep_status lockstep_join(const lockstep_join_options* options, lockstep_session** session);

/* Ends the session, and leaves the job if it still runs. No other thread may have a call on it
 * under way, and no call may come after. NULL is allowed. */
void lockstep_end(lockstep_session* session);

uint32_t lockstep_worker(const lockstep_session* session);      /* this worker's slot */
uint32_t lockstep_incarnation(const lockstep_session* session); /* above 1: it had a predecessor */
uint32_t lockstep_workers(const lockstep_session* session);     /* of the job */
const char* lockstep_config(const lockstep_session* session);   /* the job's config, as INI text */

/* Settings of some parameters for the job's own update rules, in place of the job's. With
 * optimizer.name = custom the program makes the updates, and they have no effect. */
typedef struct lockstep_group {
  double lr_factor;    /* of the schedule's rate, at least 0 */
  double weight_decay; /* below 0: the job's */
  double momentum;     /* below 0: the job's; 0 where it has one is refused */
} lockstep_group;

typedef struct lockstep_tensor {
  const char* name;
  const uint64_t* shape;
  size_t dimensions;
  const lockstep_group* group; /* NULL: the job's settings; the same on every worker */
} lockstep_tensor;

/* The facts about the training that the exchange needs. Only lockstep_begin reads the pointers,
 * except for `initial`. */
typedef struct lockstep_job {
  size_t size;              /* sizeof(lockstep_job) */
  uint64_t parameter_count; /* FP32 values in model order */
  /* Consecutive runs of parameters, in model order, whose gradients become final together. Their
   * sum is parameter_count. finish_order is the order in which the backward pass is expected to
   * finish them. It is the same on every worker: buckets are laid out by it, and one can be sent
   * when all before it can. */
  const uint64_t* blocks;
  const uint32_t* finish_order;
  size_t block_count;
  /* Names and shapes of the parameters, in model order, for checkpoints; together parameter_count.
   * They are optional. There are at most 65536, of at most 8 dimensions. The names, all different
   * and not "__metadata__", have 1 to 4096 bytes of printable text. */
  const lockstep_tensor* tensors;
  size_t tensor_count;
  /* The initial parameters of a new job: parameter_count values, which must not change until
   * lockstep_next has returned work or the end. They are the same on every worker, which is checked
   * unless `own_parameters`. */
  const float* initial;
  /* Workers whose digests differ cannot be in one job. Other facts that must be equal may follow
   * the digest of the data, each after "; ": the message names the difference. It has at most 4096
   * bytes, with a few hundred that the groups of tensors add. */
  const char* dataset_digest;
  uint64_t train_samples; /* at most 2^32 - 1, as test_samples */
  uint64_t test_samples;
  /* With optimizer.name = custom this program makes the updates (LOCKSTEP_UPDATE). Not 0: it can do
   * so. state_tensors is the size of its state for them, in multiples of the parameters' size. It
   * is the same on every worker, at most 256. With other names neither has an effect. */
  int32_t makes_updates;
  uint32_t state_tensors;
  /* The largest run that this worker computes at once: no run has more samples than
   * max_run_samples, nor more units than max_run_units (1: each unit is a run). 0: no bound. A unit
   * is never divided, so one with more samples is a run. Where job.units is auto, no unit has more
   * than any worker's bound. Each worker may have its own bounds. */
  uint64_t max_run_samples;
  uint32_t max_run_units;
  /* Not 0: this worker has drawn `initial` by itself, and the job begins with that of the worker
   * with the lowest id. The field is the same on every worker, which is checked. */
  int32_t own_parameters;
  /* Not 0: some parameters are running statistics, which are sent with the gradients and must be
   * neither rounded to 16 bits, left out nor clipped. Begin refuses settings that do so. */
  int32_t averages;
  /* Not 0: the program gets the end of each epoch as work (LOCKSTEP_EPOCH_END). */
  int32_t epoch_ends;
  /* The cost of each training sample beside the others (its length, say): train_samples numbers, at
   * least 0 and not all 0. Where the policy moves work (flexrr, balance, auto) it is shared out by
   * them. The result does not depend on them otherwise. NULL: all cost the same. */
  const float* costs;
  /* The most that a run of this worker costs, as a batch that is padded: its samples times the cost
   * of the dearest one. Until the costs of an epoch are told each unit is a run. 0: no bound. */
  double max_run_cost;
} lockstep_job;

/* Allocates the buffers, starts the transports and tells the coordinator that this worker is ready.
 */
lockstep_status lockstep_begin(lockstep_session* session, const lockstep_job* job);

/* Half open positions in the epoch's order of samples. */
typedef struct lockstep_range {
  uint64_t from;
  uint64_t to;
} lockstep_range;

typedef enum lockstep_kind {
  LOCKSTEP_NONE = 0,     /* the time has run out */
  LOCKSTEP_TRAIN = 1,    /* add the gradient SUM over `samples` to `gradient`, then lockstep_done */
  LOCKSTEP_EVALUATE = 2, /* evaluate test samples [from, to), then lockstep_evaluation_done */
  LOCKSTEP_END = 3,
  LOCKSTEP_UPDATE = 4, /* change `update` by `gradient`, then lockstep_update_done */
  /* With lockstep_job.epoch_ends: `epoch`, and those before it, have ended. `parameters` are those
   * after its last round, and do not change until the next call of lockstep_next. It comes before
   * any work of the next epoch, also to a worker that had no units at the epoch's end. `round` is
   * the first one of a later epoch. The last epoch ends with LOCKSTEP_END. */
  LOCKSTEP_EPOCH_END = 5,
} lockstep_kind;

/* The reduction of a number about samples over all that a round counts. */
typedef enum lockstep_reduction {
  LOCKSTEP_MEAN = 0, /* over samples */
  LOCKSTEP_SUM = 1,
  LOCKSTEP_MIN = 2,
  LOCKSTEP_MAX = 3,
} lockstep_reduction;

typedef struct lockstep_metric {
  const char* name;
  int32_t reduction;
  double value;
} lockstep_metric;

/* Pointers are valid until the lockstep_done, lockstep_evaluation_done or lockstep_update_done for
 * the work, and at the end until lockstep_end. Pointers to floats are valid as long as they are
 * kept (lockstep_keep). */
typedef struct lockstep_work {
  size_t size; /* sizeof(lockstep_work) */
  int32_t kind;
  uint32_t epoch;
  uint64_t round;
  /* TRAIN: a run of units, to be computed together. It has positions in the epoch's order, and the
   * training samples at them, in that order. */
  const lockstep_range* ranges;
  size_t range_count;
  const uint32_t* samples;
  size_t sample_count;
  uint32_t units;
  /* The parameters are those of every other work of this kind with the same version. */
  uint32_t parameters_version;
  const float* parameters;
  float* gradient;
  /* For any kind: the memory of parameters, gradient, update and state. -1: the host's; else that
   * of the CUDA device of this number. */
  int32_t device;
  /* EVALUATE. */
  lockstep_range evaluate;
  /* END: the reason, and the result for this worker. */
  const char* reason;
  int32_t failed;
  int32_t unfit; /* failed, because this worker's host or options keep it from taking part */
  int32_t left;  /* this worker left before the job's end */
  int32_t early; /* the job has ended before all of its rounds were done, and has not failed */
  /* Not 0: `parameters` (NULL before the job began) are the job's final ones, the same bits on all
   * its workers; params_digest is their SHA-256 in hex. Otherwise not_final has the reason. */
  int32_t final_parameters;
  const char* params_digest;
  const char* not_final;
  /* UPDATE: `round` is committed. `gradient` is its mean over `update_samples`, clipped by
   * optimizer.clip, and may be overwritten. Change `update`, the parameters, and `state` in place,
   * to the same bits on every worker. `state` has state_tensors times as many values, which were
   * zero before the first update. Keep all facts for the next update there: checkpoints, and
   * workers that join, have nothing else. The rate is that of the job's schedule; the update is
   * `fraction` of a step; `steps` are all of them so far, rounded up. */
  float* update;
  float* state;
  float learning_rate;
  float fraction;
  uint64_t update_samples;
  uint64_t steps;
  /* For each kind, where has_counted is not 0: the newest round that is known to be committed, the
   * number of samples that it counted, their mean loss, and their metrics. During a run of a round
   * it is the one before; with UPDATE it is the round of the update, if this worker has heard of
   * its commit. It is valid until the next lockstep_next. */
  int32_t has_counted;
  uint32_t counted_epoch;
  uint64_t counted_round;
  uint64_t counted_samples;
  double counted_loss;
  const lockstep_metric* metrics;
  size_t metric_count;
  /* Likewise: the policy in force then, and the workers (numbers, ascending) whose units took at
   * least 1.5 times the median's time, by the coordinator's measurements. */
  const char* policy;
  const uint64_t* slow_workers;
  size_t slow_worker_count;
  /* TRAIN, UPDATE: the position in the learning rate's schedule before this round, in updates of
   * whole rounds. In a job that ends by its epochs, it follows the counted samples, however many
   * rounds those took. */
  double schedule_position;
  /* TRAIN: 0 where lockstep_block_final is of no use in this run. Then all others read the gradient
   * in place, there are none, or it is narrowed to 16 bits on a GPU when it is complete. The call
   * is allowed all the same. */
  int32_t tells_final;
  /* EPOCH_END, not 0: the parameters may be later ones than the epoch's. This worker has joined
   * since, was behind and copied them, or computed asynchronously meanwhile. */
  int32_t late;
} lockstep_work;

/* Blocks until there is work or the end, at most for `seconds`; below 0: for ever. LOCKSTEP_INVALID
 * while the earlier work is not done. */
lockstep_status lockstep_next(lockstep_session* session, double seconds, lockstep_work* work);

/* Optional, in a run: the gradient of a block does not change any more in it, and may be sent. Any
 * thread may call it, several at once too, in any order, at most once for a block, and before the
 * lockstep_done of the run. Other blocks are final with lockstep_done. */
void lockstep_block_final(lockstep_session* session, uint32_t block);
/* In a run, before lockstep_done: a number about it. A mean is one over `samples` of the run, and
 * counts so many times; other reductions ignore them. Log each name once in a run for a reduction.
 * A name has 1 to 64 bytes of printable text. All workers of a job together have at most 64; of
 * more, those that come last in a round are left out. The number counts when the run's gradient
 * does, once. */
lockstep_status lockstep_log_metric(lockstep_session* session, const char* name,
                                    lockstep_reduction reduction, double value, uint64_t samples);
/* Optional, in a run, before lockstep_done: for how many seconds since its lockstep_next the
 * program waited for its samples, and how many samples are ready for later runs. Either may be
 * below 0: it is unknown. It is for people who watch the job: it distinguishes a straggler that
 * waits for its disk from one that computes slowly. Further calls in a run add up the waits. */
void lockstep_note_reading(lockstep_session* session, double waited_s, int64_t samples_ahead);
/* The run is done, or was stopped because lockstep_cancelled is true. It fails where a GPU does.
 * LOCKSTEP_INVALID: there is no present run, or `samples` is not its number of samples although it
 * is not cancelled; the run stays the present one. */
lockstep_status lockstep_done(lockstep_session* session, uint64_t samples, double loss_sum);
/* The same for a program whose loss is a mean over something other than samples, for instance
 * tokens. `divisor` is their number in the run, at most 2^31; a run with 0 counts for nothing. The
 * gradient and the loss of the round are the sums of all its runs divided by the sum of the
 * divisors. */
lockstep_status lockstep_done_weighted(lockstep_session* session, uint64_t samples,
                                       uint64_t divisor, double loss_sum);
/* `correct`: how many samples of `evaluate` are right, at most all of them. More, or a call without
 * an evaluation, is a programmer's mistake. */
void lockstep_evaluation_done(lockstep_session* session, double loss_sum, uint64_t correct);
void lockstep_update_done(lockstep_session* session);

/* A GPU's memory. With `device` in lockstep_join_options, lockstep_work points to memory on the
 * GPU, which only the GPU may read and write. Earlier work there is done when lockstep_next
 * returns, and a new gradient is zero. The program's work on the GPU may be under way when a call
 * returns. So it names its stream, `stream`: a CUstream or cudaStream_t of that device, NULL for
 * the default stream. The calling thread's current device does not change.
 *
 * Sleeps until all work of the stream is done. Call it before lockstep_done,
 * lockstep_evaluation_done, lockstep_update_done and lockstep_end, if the stream got work since
 * lockstep_next. With the host's memory it does nothing.
 */
lockstep_status lockstep_await(lockstep_session* session, void* stream);
/* Acts like lockstep_block_final as soon as all earlier work of the stream is done, and returns at
 * once. With the host's memory it is the same as lockstep_block_final. */
lockstep_status lockstep_block_final_after(lockstep_session* session, uint32_t block, void* stream);

/* Memory of a session that stays although its purpose is over. */
typedef struct lockstep_memory lockstep_memory;

/* `at`: parameters, gradient or state of the present work, or the parameters at the end. That
 * memory can be read and written until lockstep_release. This holds after lockstep_done, where the
 * session continues to write there, and after lockstep_end. It is for languages in which references
 * live on. All other memory of the session stays with it. */
lockstep_status lockstep_keep(lockstep_session* session, const float* at, lockstep_memory** memory);
/* The same, as a tensor of `count` FP32 values in DLPack's terms (dlpack.h, the structure without a
 * version). Libraries that read such tensors view that memory, the host's or the GPU's. The
 * tensor's own deleter releases it, on any thread. */
struct DLManagedTensor;
lockstep_status lockstep_keep_tensor(lockstep_session* session, const float* at, uint64_t count,
                                     struct DLManagedTensor** tensor);
/* Any thread may call it. NULL is allowed. */
void lockstep_release(lockstep_memory* memory);

/* Not 0 once the result of the current run cannot count any more. */
int32_t lockstep_cancelled(const lockstep_session* session);

/* Leaves the job: lockstep_next returns the end soon, and the coordinator gets this reason. Before
 * lockstep_begin has returned, it gets the reason when that returns. */
void lockstep_interrupt(lockstep_session* session, const char* reason);

/* Tells the costs of the samples of `epoch` by position, where the program has an order of its own.
 * They take the place of lockstep_job.costs for that epoch. All workers say the same, of this epoch
 * or the next one, the sooner the better. `count` is train_samples. */
lockstep_status lockstep_tell_costs(lockstep_session* session, uint32_t epoch, const float* costs,
                                    uint64_t count);

/* This thread does something else, for at most so many seconds (above 0, at most 86400): it
 * validates, saves or compiles. Until lockstep_back, lockstep_next or lockstep_done the worker does
 * not become lost for making no progress. During a run, computed or not, the parameters do not
 * change. Where the policy moves work, others may have computed the run when the worker is back
 * (lockstep_cancelled).
 */
lockstep_status lockstep_away(lockstep_session* session, double at_most_seconds,
                              const char* reason);
lockstep_status lockstep_back(lockstep_session* session);

/* Ends the job for all its workers, in good order and completed, with the last committed round:
 * lockstep_next returns the end soon, with its parameters. The present run does not count, but
 * lockstep_done still has to be called for it. All workers may call it, or one. */
lockstep_status lockstep_stop(lockstep_session* session, const char* reason);

#ifdef __cplusplus
}
#endif

#endif /* LOCKSTEP_H */
