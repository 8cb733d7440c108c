// A trainer that forks in the middle of its work, as data loaders do: the child inherits what it
// may and lives on. usage: lockstep-forking-worker HOST:PORT [fork|spawn]
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <span>
#include <string>

#include "base/log.h"
#include "worker/runtime/session.h"

namespace {

// Prints the child's process id. It ends when somebody kills it.
void StartChild(bool spawn) {
  pid_t child = -1;
  if (spawn) {
    char program[] = "/bin/sleep";
    char length[] = "infinity";
    char* const arguments[] = {program, length, nullptr};
    if (::posix_spawn(&child, program, nullptr, nullptr, arguments, nullptr) != 0) ::_exit(3);
  } else {
    child = ::fork();
    if (child == 0) {
      for (;;) ::pause();
    }
  }
  std::printf("child %d\n", static_cast<int>(child));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  namespace worker = lockstep::worker;
  if (argc != 3) return 2;
  lockstep::InitLogging("forking", "info");
  worker::SessionOptions options;
  options.coordinator = argv[1];
  auto session = worker::Session::Join(options);
  if (!session) {
    std::fprintf(stderr, "%s\n", session.error().message.c_str());
    return 2;
  }
  worker::JobDescription job;
  job.parameter_count = 4096;
  job.blocks = {4096};
  job.finish_order = {0};
  job.initialize = [](std::span<float> parameters) { std::ranges::fill(parameters, 0.0f); };
  job.dataset_digest = "none";
  job.train_samples = 2048;
  if (!(*session)->Begin(job).ok()) return 2;
  for (bool forked = false;;) {
    const worker::Work work = (*session)->Next();
    if (work.kind == worker::Work::Kind::kEnd) return work.failed ? 1 : 0;
    if (work.kind != worker::Work::Kind::kTrain) {
      (*session)->EvaluationDone(0, 0);
      continue;
    }
    // By now every connection of the job is there.
    if (!forked) StartChild(std::string(argv[2]) == "spawn");
    forked = true;
    (*session)->Done({.samples = work.samples.size(), .loss_sum = 0});
  }
}
