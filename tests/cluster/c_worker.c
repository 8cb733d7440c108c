/* A worker in C: linear regression through lockstep.h.
 *   usage: lockstep-c-worker HOST:PORT [INITIAL [SETTINGS [UPDATE]]]
 * INITIAL: the value that all parameters begin with, 0. SETTINGS: what the program says of the job.
 * UPDATE: it makes the updates itself, by SGD with momentum: "momentum"; "differ", which goes
 * astray in its 20th update, or "hang", which never ends that; "hoard", which wants more state than
 * there can be; "misfit", whose tensors are not the whole model. WRONG_FROM in the environment: a
 * round, from which on each of its gradients is wrong by 0.001 in one number. Prints "waiting" once it has waited in vain, then "end: REASON", "digest: DIGEST",
 * "error: E", the largest difference between a parameter and what the samples were made with, and
 * "parameters: ...". */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lockstep.h"

enum { kFeatures = 16, kSamples = 4096 };

/* The same numbers on every worker: a small linear congruential generator over (sample, feature).
 */
static float Feature(uint32_t sample, uint32_t feature) {
  uint64_t x = (uint64_t)sample * kFeatures + feature + 1;
  for (int i = 0; i < 4; ++i) x = x * 6364136223846793005u + 1442695040888963407u;
  return (float)(x >> 40) / (float)(1 << 24) - 0.5f;
}

static float Target(uint32_t sample) {
  float y = 0;
  for (uint32_t f = 0; f < kFeatures; ++f) y += (float)f * Feature(sample, f);
  return y;
}

static int Fail(lockstep_status status) {
  fprintf(stderr, "c_worker: %s\n", lockstep_error());
  return (int)status;
}

/* Adds the gradient sum of the run; returns the loss sum. */
static double Train(const lockstep_work* work) {
  double loss = 0;
  for (size_t i = 0; i < work->sample_count; ++i) {
    const uint32_t sample = work->samples[i];
    float error = -Target(sample);
    for (uint32_t f = 0; f < kFeatures; ++f) error += work->parameters[f] * Feature(sample, f);
    for (uint32_t f = 0; f < kFeatures; ++f) work->gradient[f] += error * Feature(sample, f);
    loss += 0.5 * (double)error * (double)error;
  }
  const char* wrong_from = getenv("WRONG_FROM");
  if (wrong_from != NULL && work->round >= strtoull(wrong_from, NULL, 10)) work->gradient[3] += 1e-3f;
  return loss;
}

/* The formula of the session's own rule `sgd`, with momentum 0.9. */
static void Update(const lockstep_work* work, const char* how) {
  static int updates = 0;
  for (uint32_t f = 0; f < kFeatures; ++f) {
    const float velocity = 0.9f * work->state[f] + work->gradient[f];
    work->state[f] = velocity;
    work->update[f] -= work->learning_rate * work->fraction * velocity;
  }
  if (++updates != 20) return;
  if (strcmp(how, "differ") == 0) work->update[3] += 1e-3f;
  if (strcmp(how, "hang") == 0) {
    printf("hangs\n");
    fflush(stdout);
    for (;;) pause();
  }
}

static int End(const lockstep_work* work) {
  double error = 0;
  printf("end: %s\n", work->reason);
  if (!work->final_parameters) {
    printf("not final: %s\n", work->not_final);
    return work->unfit ? 2 : work->failed ? 1 : 0;
  }
  for (uint32_t f = 0; f < kFeatures; ++f) {
    const double difference = fabs((double)work->parameters[f] - (double)f);
    if (difference > error) error = difference;
  }
  printf("digest: %s\nerror: %g\nparameters:", work->params_digest, error);
  for (uint32_t f = 0; f < kFeatures; ++f) printf(" %.9g", (double)work->parameters[f]);
  printf("\n");
  return 0;
}

int main(int argc, char** argv) {
  if (argc < 2 || argc > 5) return 2;
  const char* update = argc == 5 ? argv[4] : NULL;
  if (lockstep_abi_version() != LOCKSTEP_ABI_VERSION) return 2;
  lockstep_log("c_worker", "info");

  lockstep_join_options options = {.size = sizeof options, .coordinator = argv[1], .wanted = -1};
  lockstep_session* session = NULL;
  options.size -= 1; /* as a program would that was built with another header */
  lockstep_status status = lockstep_join(&options, &session);
  if (status != LOCKSTEP_INVALID || session != NULL) return 9;
  printf("refused: %s\n", lockstep_error());
  options.size = sizeof options;
  if (argc >= 4) options.settings = argv[3];
  status = lockstep_join(&options, &session);
  if (status != LOCKSTEP_OK) return Fail(status);

  lockstep_work work = {.size = sizeof work};
  if (lockstep_next(session, -1, &work) != LOCKSTEP_INVALID) return 9;
  printf("refused: %s\n", lockstep_error());

  const uint64_t block = kFeatures;
  const uint32_t order = 0;
  const uint64_t shape[] = {4, update && strcmp(update, "misfit") == 0 ? 3 : 4};
  const lockstep_tensor tensor = {.name = "weight", .shape = shape, .dimensions = 2};
  float initial[kFeatures];
  /* "own:VALUE": whatever the others begin with. */
  const char* value = argc >= 3 ? argv[2] : "0";
  const int own = strncmp(value, "own:", 4) == 0;
  for (int f = 0; f < kFeatures; ++f) initial[f] = (float)atof(own ? value + 4 : value);
  const lockstep_job job = {
      .size = sizeof job,
      .parameter_count = kFeatures,
      .blocks = &block,
      .finish_order = &order,
      .block_count = 1,
      .tensors = &tensor,
      .tensor_count = 1,
      .initial = initial,
      .dataset_digest = "linear",
      .train_samples = kSamples,
      .makes_updates = update != NULL,
      .state_tensors = update && strcmp(update, "hoard") == 0 ? UINT32_MAX : 1,
      .own_parameters = own,
      .epoch_ends = 1};
  if (lockstep_done(session, 1, 0) != LOCKSTEP_INVALID) return 9;
  printf("refused: %s\n", lockstep_error());
  status = lockstep_begin(session, &job);
  if (status != LOCKSTEP_OK) return Fail(status);

  if (lockstep_begin(session, &job) != LOCKSTEP_INVALID) return 9;
  printf("refused: %s\n", lockstep_error());

  int result = -1;
  int waited = 0;
  lockstep_memory* kept = NULL;
  const float* at = NULL;
  while (result < 0) {
    status = lockstep_next(session, 0.01, &work);
    if (status != LOCKSTEP_OK) return Fail(status);
    switch (work.kind) {
      case LOCKSTEP_NONE:
        if (!waited) printf("waiting\n");
        waited = 1;
        fflush(stdout);
        break;
      case LOCKSTEP_TRAIN:
        if (kept == NULL) {
          if (lockstep_keep(session, work.parameters, &kept) != LOCKSTEP_OK) return 9;
          lockstep_work other = {.size = sizeof other};
          if (lockstep_next(session, 0, &other) != LOCKSTEP_INVALID) return 9;
          printf("refused: %s\n", lockstep_error());
          status = lockstep_done(session, work.sample_count + 1, 0);
          if (status == LOCKSTEP_OK) break; /* it was cancelled, and counts for nothing */
          printf("refused: %s\n", lockstep_error());
        }
        at = work.parameters;
        if (lockstep_done(session, work.sample_count, Train(&work)) != LOCKSTEP_OK) return 9;
        break;
      case LOCKSTEP_UPDATE:
        Update(&work, update);
        lockstep_update_done(session);
        break;
      case LOCKSTEP_EPOCH_END:
        printf("epoch %u ended before round %llu: %a%s\n", work.epoch, (unsigned long long)work.round,
               (double)work.parameters[0], work.late ? ", late" : "");
        break;
      case LOCKSTEP_EVALUATE:
        lockstep_evaluation_done(session, 0, 0);
        break;
      default:
        result = End(&work);
    }
  }
  lockstep_end(session);
  if (kept != NULL && result == 0) printf("kept: %g\n", (double)at[kFeatures - 1]);
  lockstep_release(kept);
  return result;
}
