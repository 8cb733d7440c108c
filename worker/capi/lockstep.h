/* A worker of a Lockstep job from any language: the C form of worker/runtime/session.h, whose head
 * shows the loop. docs/reference/c-interface.md has an example.
 *
 * Versions. LOCKSTEP_ABI_VERSION changes when a program that was built with another one would not
 * work: compare it with lockstep_abi_version() before anything else. The structures with a `size`
 * (lockstep_join_options, lockstep_job, lockstep_work) begin with it, and the caller sets it: one
 * that the library does not know is an error. The others have none.
 *
 * Errors. Functions that can fail return a lockstep_status; lockstep_error() then has one line for
 * people, of the last failure in the calling thread, until its next one. What a programmer did
 * wrong where there is no status, as lockstep_update_done without an update, ends the process with
 * a message.
 *
 * Threads. All calls on a session come from one thread, but lockstep_interrupt, lockstep_cancelled,
 * lockstep_block_final and lockstep_block_final_after, which any may call; lockstep_join may be
 * called by another. A child that is forked off may do nothing with a session; lockstep_end does
 * nothing there.
 *
 * Texts are UTF-8 and end with a zero byte. What a function returns by pointer belongs to the
 * library.
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
  LOCKSTEP_FAILED = 1,    /* the job has failed, or the system said no */
  LOCKSTEP_INVALID = 2,   /* what the caller or the user gave is wrong, or was refused */
  LOCKSTEP_TRY_AGAIN = 3, /* nothing is wrong: the job has no place for this worker now */
} lockstep_status;

typedef struct lockstep_session lockstep_session;

uint32_t lockstep_abi_version(void);
const char* lockstep_version(void); /* of the software: "0.1.0" */
const char* lockstep_error(void);

/* The library's own log lines, on standard error: their name and the least level that is shown
 * (trace, debug, info, warn, error). For the whole process; before the first session. */
lockstep_status lockstep_log(const char* name, const char* level);

typedef struct lockstep_join_options {
  size_t size;             /* sizeof(lockstep_join_options) */
  const char* coordinator; /* "HOST:PORT" */
  const char* secret_file; /* NULL: none; required beyond loopback */
  const char*
      data_host; /* address that peers connect to; NULL: that of the way to the coordinator */
  /* What this program says of the job, INI text; NULL: nothing. All workers must say the same. */
  const char* settings;
  const char* slowdowns;    /* to be slowed down, for experiments: one SPEC a line; NULL: not */
  int64_t wanted;           /* a slot that this worker would have; -1: any */
  double connect_timeout_s; /* 0: 60 */
  /* Where the program computes, and gradients, parameters and state are to be: NULL or "cpu", the
   * host's memory; "cuda:0" .., that GPU's, see "A GPU's memory" below. */
  const char* device;
  /* Not 0: ends the process, with status 1, when the coordinator has put this worker out and the
   * run in hand does not end: not within liveness.timeout, nor twice the longest run so far. A line
   * on stderr says so and names the run. A thread that hangs cannot be ended in another way, and
   * whatever has started the process can start another one. */
  int32_t end_when_hung;
  /* With that: a signal that is raised before the process ends, on a thread of the library, behind
   * the line; its handler can say where the program hangs. 0: none. */
  int32_t hung_signal;
} lockstep_join_options;

/* Connects to the coordinator and receives the job's config. */
lockstep_status lockstep_join(const lockstep_join_options* options, lockstep_session** session);

/* Ends the session, leaves the job if it is still on. No other call on it is under way, of whatever
 * thread, and none comes after. NULL is allowed. */
void lockstep_end(lockstep_session* session);

uint32_t lockstep_worker(const lockstep_session* session);      /* this worker's slot */
uint32_t lockstep_incarnation(const lockstep_session* session); /* above 1: it had a predecessor */
uint32_t lockstep_workers(const lockstep_session* session);     /* of the job */
const char* lockstep_config(const lockstep_session* session);   /* the job's, as INI text */

/* What the job's own update rules take for some of the parameters in place of the job's settings.
 * With optimizer.name = custom the program makes the updates, and it does not matter. */
typedef struct lockstep_group {
  double lr_factor;    /* of the rate that the schedule says, at least 0 */
  double weight_decay; /* below 0: the job's */
  double momentum;     /* below 0: the job's; 0 where it has one is refused */
} lockstep_group;

typedef struct lockstep_tensor {
  const char* name;
  const uint64_t* shape;
  size_t dimensions;
  const lockstep_group* group; /* NULL: the job's settings; the same on every worker */
} lockstep_tensor;

/* What is trained, as far as the exchange must know it. Pointers are read by lockstep_begin only,
 * but for `initial`. */
typedef struct lockstep_job {
  size_t size;              /* sizeof(lockstep_job) */
  uint64_t parameter_count; /* FP32 values in model order */
  /* Consecutive runs of parameters, in model order, whose gradients become final together, and the
   * order in which the backward pass is expected to finish them, the same on every worker: buckets
   * are laid out by it, and one can travel when those before it can. Together parameter_count. */
  const uint64_t* blocks;
  const uint32_t* finish_order;
  size_t block_count;
  /* Names and shapes of the parameters, in model order, for checkpoints; together parameter_count.
   * Optional. At most 65536, of at most 8 dimensions; the names, all different and not
   * "__metadata__", have 1 to 4096 bytes of printable text. */
  const lockstep_tensor* tensors;
  size_t tensor_count;
  /* The parameters that a new job starts from, the same on every worker, which is checked unless
   * `own_parameters`: parameter_count values, left as they are until lockstep_next has returned
   * work or the end. */
  const float* initial;
  /* Workers whose digests differ cannot be in one job. What else must be the same may stand behind
   * that of the data, each after "; ": the message names what differs. At most 4096 bytes,
   * with what the groups of tensors put behind it, a few hundred. */
  const char* dataset_digest;
  uint64_t train_samples; /* at most 2^32 - 1, as test_samples */
  uint64_t test_samples;
  /* Where the job's optimizer.name is custom this program makes the updates (LOCKSTEP_UPDATE): not
   * 0 says that it can, and state_tensors how many times the parameters' size of state it keeps for
   * it, the same on every worker, at most 256. Without that name neither matters. */
  int32_t makes_updates;
  uint32_t state_tensors;
  /* What this worker computes at once at most, however much is given to it: no run has more samples
   * than max_run_samples, nor more units than max_run_units (1: each unit is a run). 0: no bound. A
   * unit is never divided, so one with more samples is a run; where job.units is auto no unit has
   * more than any worker's bound. A worker's own setting: others may have others. */
  uint64_t max_run_samples;
  uint32_t max_run_units;
  /* Not 0: `initial` is whatever this worker has drawn, and the job begins with that of the worker
   * with the lowest id. The same on every worker, which is checked. */
  int32_t own_parameters;
  /* Not 0: some parameters are running statistics, which travel with the gradients and must be
   * neither rounded to 16 bits, left out nor clipped. Begin refuses settings that do so. */
  int32_t averages;
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
  LOCKSTEP_NONE = 0,     /* the time was up */
  LOCKSTEP_TRAIN = 1,    /* add the gradient SUM over `samples` to `gradient`, then lockstep_done */
  LOCKSTEP_EVALUATE = 2, /* evaluate test samples [from, to), then lockstep_evaluation_done */
  LOCKSTEP_END = 3,
  LOCKSTEP_UPDATE = 4, /* change `update` by `gradient`, then lockstep_update_done */
} lockstep_kind;

/* A number about samples, reduced over all that a round counts. */
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
 * it; at the end until lockstep_end; those to floats as long as they are kept (lockstep_keep). */
typedef struct lockstep_work {
  size_t size; /* sizeof(lockstep_work) */
  int32_t kind;
  uint32_t epoch;
  uint64_t round;
  /* TRAIN: a run of units, to be computed together: positions in the epoch's order, and which
   * training samples those are, in that order. */
  const lockstep_range* ranges;
  size_t range_count;
  const uint32_t* samples;
  size_t sample_count;
  uint32_t units;
  /* The parameters are those of every other work of this kind with the same version. */
  uint32_t parameters_version;
  const float* parameters;
  float* gradient;
  /* Of any kind: where parameters, gradient, update and state lie. -1: in the host's memory; else
   * in that of the CUDA device of this number. */
  int32_t device;
  /* EVALUATE. */
  lockstep_range evaluate;
  /* END: why, and how it is for this worker. */
  const char* reason;
  int32_t failed;
  int32_t unfit; /* failed, because this worker's host or options do not allow it to take part */
  int32_t left;  /* this worker left before the job's end */
  int32_t early; /* the job has ended before all of its rounds were done, and has not failed */
  /* `parameters` (NULL before the job began) are those that the job ended with, on all its workers
   * the same bits; params_digest is their SHA-256 in hex. Else not_final says why not. */
  int32_t final_parameters;
  const char* params_digest;
  const char* not_final;
  /* UPDATE: `round` is committed. `gradient` is its mean over `update_samples`, clipped where
   * optimizer.clip says so, and may be written over. `update`, the parameters, and `state`,
   * state_tensors times as many values that were zero before the first update, are to be changed in
   * place: to the same bits on every worker. Whatever is to be known at the next update goes there:
   * checkpoints, and workers that join, have nothing else. The rate is that of the job's schedule;
   * `fraction` of a step is what the update is; `steps` are all of them so far, rounded up. */
  float* update;
  float* state;
  float learning_rate;
  float fraction;
  uint64_t update_samples;
  uint64_t steps;
  /* Of each kind, where has_counted is not 0: the newest round that is known to be committed, how
   * many samples it has counted, the mean loss over them, and what was logged of them. Beside a run
   * of a round it is the one before. Valid until the next lockstep_next. */
  int32_t has_counted;
  uint32_t counted_epoch;
  uint64_t counted_round;
  uint64_t counted_samples;
  double counted_loss;
  const lockstep_metric* metrics;
  size_t metric_count;
  /* Likewise: the policy that was in force, and the workers (numbers, ascending) whose units took
   * at least 1.5 times the median's time, as the coordinator sees it. */
  const char* policy;
  const uint64_t* slow_workers;
  size_t slow_worker_count;
  /* TRAIN, UPDATE: where the schedule of the learning rate is before this round: updates of whole
   * rounds, in a job that ends by its epochs by the samples that were counted, however many rounds
   * those took. */
  double schedule_position;
  /* TRAIN: 0 where nobody gains by lockstep_block_final in this run, since all others read the
   * gradient in place, there are none, or it is narrowed to 16 bits on a GPU when it is whole. It
   * may be called all the same. */
  int32_t tells_final;
} lockstep_work;

/* Blocks until there is work or the end, at most for `seconds`; below 0: for ever.
 * LOCKSTEP_INVALID while the work before is not done. */
lockstep_status lockstep_next(lockstep_session* session, double seconds, lockstep_work* work);

/* Optional, in a run: the gradient of a block does not change any more in it, and may travel. From
 * any thread, several at once too, in any order, at most once for a block, and before the
 * lockstep_done of the run is called. What is not said is final with lockstep_done. */
void lockstep_block_final(lockstep_session* session, uint32_t block);
/* In a run, before lockstep_done: a number about it. A mean is one over `samples` of the run, and
 * counts so many times; they do not matter to the others. Each name once in a run for a reduction,
 * of 1 to 64 bytes of printable text; at most 64 of them in a job: of all workers together, where
 * of more those that come last in a round are left out. It counts when the run's gradient does,
 * once. */
lockstep_status lockstep_log_metric(lockstep_session* session, const char* name,
                                    lockstep_reduction reduction, double value, uint64_t samples);
/* Optional, in a run, before lockstep_done: of the time since lockstep_next gave it, for how many
 * seconds the program waited for its samples, and how many samples lie ready for later runs; either
 * may be below 0: it is not said. For who watches the job: a straggler that waits for its disk is
 * told from one that computes slowly. Said again in a run, the waits are added up. */
void lockstep_note_reading(lockstep_session* session, double waited_s, int64_t samples_ahead);
/* The run is done, or was left off because lockstep_cancelled is true. It fails where a GPU does.
 * LOCKSTEP_INVALID: there is none in hand, or `samples` is not how many it has, though it is not
 * cancelled; it is in hand still. */
lockstep_status lockstep_done(lockstep_session* session, uint64_t samples, double loss_sum);
/* The same for a program whose loss is a mean over something else than samples, tokens say: how
 * many of them the run has, at most 2^31, 0 for one that counts for nothing. The gradient and the
 * loss of the round are the sums of all its runs divided by the sum of this. */
lockstep_status lockstep_done_weighted(lockstep_session* session, uint64_t samples,
                                       uint64_t divisor, double loss_sum);
/* `correct`: how many samples of `evaluate` are right, at most all of them; more, or no evaluation
 * in hand, is a programmer's mistake. */
void lockstep_evaluation_done(lockstep_session* session, double loss_sum, uint64_t correct);
void lockstep_update_done(lockstep_session* session);

/* A GPU's memory. With `device` in lockstep_join_options what lockstep_work points to lies on the
 * GPU, and is for the GPU alone to read and write. Whatever was done there before is done when
 * lockstep_next returns, a gradient that begins is zero. What the program asks of the GPU may be
 * under way when a call returns; so it names the stream on which it has, `stream`: a CUstream or
 * cudaStream_t of that device, NULL for the default stream. The calling thread's current device
 * stays what it was.
 *
 * Returns, asleep until then, when all that was asked of the stream is done: to be called before
 * lockstep_done, lockstep_evaluation_done, lockstep_update_done and lockstep_end, where something
 * was asked since lockstep_next. In the host's memory it does nothing. */
lockstep_status lockstep_await(lockstep_session* session, void* stream);
/* As lockstep_block_final, as soon as all that was asked of the stream before is done: returns at
 * once. On the host's memory the same as lockstep_block_final. */
lockstep_status lockstep_block_final_after(lockstep_session* session, uint32_t block, void* stream);

/* Memory of a session that stays although what it was for is over. */
typedef struct lockstep_memory lockstep_memory;

/* `at`: parameters, gradient or state of the work in hand, or the parameters at the end. That
 * memory can be read and written until lockstep_release, also after lockstep_done, where the
 * session goes on writing there, and after lockstep_end: for languages in which references live on.
 * Together with it stays all other memory of the session. */
lockstep_status lockstep_keep(lockstep_session* session, const float* at, lockstep_memory** memory);
/* The same, as a tensor of `count` FP32 values in DLPack's terms (dlpack.h, the structure without a
 * version): what reads those views that memory, the host's or the GPU's. The tensor's own deleter
 * is its release, from any thread. */
struct DLManagedTensor;
lockstep_status lockstep_keep_tensor(lockstep_session* session, const float* at, uint64_t count,
                                     struct DLManagedTensor** tensor);
/* From any thread. NULL is allowed. */
void lockstep_release(lockstep_memory* memory);

/* Not 0 once the result of the current run cannot count any more. */
int32_t lockstep_cancelled(const lockstep_session* session);

/* Leaves the job: lockstep_next returns the end soon, and the coordinator is told this reason,
 * before lockstep_begin has returned when it does. */
void lockstep_interrupt(lockstep_session* session, const char* reason);

/* This thread does something else, for at most so many seconds (above 0, at most 86400): validates,
 * saves, compiles. Until lockstep_back, lockstep_next or lockstep_done the worker is not lost for
 * making no progress. With a run in hand, computed or not, the parameters stay as they are; where
 * the policy moves work, others may have computed it when the worker is back (lockstep_cancelled).
 */
lockstep_status lockstep_away(lockstep_session* session, double at_most_seconds,
                              const char* reason);
lockstep_status lockstep_back(lockstep_session* session);

/* Ends the job for all its workers, in good order and completed, with the round that was committed
 * last: lockstep_next returns the end soon, with its parameters. What is in hand does not count,
 * also where lockstep_done is called for it, as it has to be. All workers may call it, or one. */
lockstep_status lockstep_stop(lockstep_session* session, const char* reason);

#ifdef __cplusplus
}
#endif

#endif /* LOCKSTEP_H */
