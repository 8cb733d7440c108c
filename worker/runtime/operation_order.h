// Operations one at a time, in the order in which they are asked for, on another thread. Where one
// is small and none is under way, it runs at once on the thread that asks, since handing it over
// and hearing back takes two wake-ups. One that goes on elsewhere does not keep the next from
// beginning.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "worker/core/step_io.h"

namespace lockstep::worker {

class OperationOrder {
 public:
  using Run = std::function<void(std::function<void()>)>;
  struct Threads {
    Run own;    // later, on the thread that asks; any thread calls it
    Run other;  // on the other thread
  };
  // `heard`: what came of an operation; on the thread that asks, never within Do.
  OperationOrder(Threads threads, std::function<void(const event::OpDone&)> heard)
      : threads_(std::move(threads)), heard_(std::move(heard)) {}

  // `operation`: what came of it; nothing where it goes on elsewhere, and Report ends it.
  void Do(bool small, std::function<std::optional<event::OpDone>()> operation) {
    const bool at_once = small && under_way_ == 0;
    ++under_way_;
    if (at_once) return ReportAny(operation());
    threads_.other([this, operation = std::move(operation)] { ReportAny(operation()); });
  }

  // Any thread.
  void Report(event::OpDone done) {
    threads_.own([this, done = std::move(done)] {
      --under_way_;
      heard_(done);
    });
  }

 private:
  void ReportAny(std::optional<event::OpDone> done) {
    if (done) Report(*std::move(done));
  }

  const Threads threads_;
  const std::function<void(const event::OpDone&)> heard_;
  std::uint64_t under_way_ = 0;  // asked for and not heard of; of the thread that asks
};

}  // namespace lockstep::worker
