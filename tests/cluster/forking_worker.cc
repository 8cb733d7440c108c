// A trainer that forks in the middle of its work, as data loaders do: the child inherits what it
// may and lives on. usage: lockstep-forking-worker HOST:PORT fork|spawn|return
// (return: the child returns from main at once, with its copy of the session.)
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <span>
#include <string>

#include "base/log.h"
#include "worker/runtime/session.h"

namespace {

// Prints the child's process id. It ends when somebody kills it; or, with `how` return, true in the
// child.
bool StartChild(const std::string& how) {
  pid_t child = -1;
  if (how == "spawn") {
    char program[] = "/bin/sleep";
    char length[] = "infinity";
    char* const arguments[] = {program, length, nullptr};
    if (::posix_spawn(&child, program, nullptr, nullptr, arguments, nullptr) != 0) ::_exit(3);
  } else {
    child = ::fork();
    if (child == 0 && how == "return") return true;
    if (child == 0) {
      for (;;) ::pause();
    }
  }
  std::printf("child %d\n", static_cast<int>(child));
  std::fflush(stdout);
  return false;
}

// How a child ended that was told to return. Nothing else here waits for children.
int StatusOfChild() {
  int status = 0;
  if (::wait(&status) < 0) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
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
    if (!forked && StartChild(argv[2])) return 7;
    if (!forked && std::string(argv[2]) == "return") {
      std::printf("the child ended with %d\n", StatusOfChild());
      std::fflush(stdout);
    }
    forked = true;
    (*session)->Done({.samples = work.samples.size(), .loss_sum = 0});
  }
}
