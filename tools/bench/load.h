// The workers of a measured coordinator: the simulator's modelled workers, each with a TCP
// connection of its own, in one process and one thread. Their messages are those of real workers
// (units, parts and progress are the worker core's own). They compute nothing, and gradients are
// neither made nor moved.
//
// They answer at once. In rounds that are spaced, they finish their units one after the other over
// a given time. So the coordinator is done with all others when the last one comes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "tools/bench/process.h"

namespace lockstep::bench {

struct LoadOptions {
  std::uint32_t workers = 1;
  std::uint32_t units = 1;  // units of each worker in a round
  std::uint64_t train_samples = 1;
  std::uint16_t port = 0;  // of the coordinator, on 127.0.0.1
};

// One round's commit, as the workers' sockets saw it.
struct CommitSeen {
  RoundId round;
  Time needed;  // the last message that the round needed was written
  Time first;   // the commit was there for the first worker
  Time last;    // and for the last one
};

class Load {
 public:
  // Called when all workers have read the commit. From the rounds of the answer on, units are
  // spaced over that time (zero: they end at once).
  using OnCommit = std::function<Duration(const CommitSeen&)>;

  Load(const LoadOptions& options, OnCommit on_commit);
  ~Load();
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  // Connects all workers and serves them until the coordinator's process has ended.
  Status Run(Child& coordinator, Signals& signals);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::bench
