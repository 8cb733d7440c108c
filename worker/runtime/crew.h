// The threads that carry out one operation together: who asks for it, and helpers that wait for
// work in between. What is done, and its bits, do not depend on how many there are.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/processors.h"
#include "worker/runtime/task_thread.h"

namespace lockstep::worker {

class Crew {
 public:
  // How many threads there are from the next operation on, the one that asks among them; at least
  // 1, which is what it begins with. Any thread.
  void Use(std::size_t threads) { wanted_.store(threads, std::memory_order_relaxed); }

  // work(i) once for each i below `count`, by several threads at a time, in any order; returns when
  // all are done, and sees what they have written. Helpers that come too late, because the
  // processors have other work, are not waited for. `work` throws nothing. One caller at a time.
  void ForEach(std::size_t count, const std::function<void(std::size_t)>& work);

 private:
  class Job;

  std::atomic<std::size_t> wanted_{1};
  std::vector<std::unique_ptr<TaskThread>> helpers_;  // of the caller
};

// How many threads a worker sums and updates with: as many as exchange.threads says; with auto its
// share of the host's processors, at most kMostByItself. Not thread-safe.
class CrewSize {
 public:
  // More seldom gain anything: the memory is what they wait for.
  static constexpr std::size_t kMostByItself = 8;

  // `threads`: 0 for auto. `processors`: of this process. `host_id`: of this worker.
  CrewSize(std::uint32_t threads, const Processors& processors, std::string host_id)
      : threads_(threads), processors_(processors), host_id_(std::move(host_id)) {}

  // Of the other workers, which of them are on this host, and which are no more.
  void Saw(const msg::Form& form);
  void Saw(const msg::MemberLeft& left) { here_.erase(left.member); }

  std::size_t threads() const;
  // As "sums and updates by 4 threads: ...".
  std::string Words() const;

 private:
  const std::uint32_t threads_;
  const Processors processors_;
  const std::string host_id_;
  std::set<MemberId> here_;  // the others
};

}  // namespace lockstep::worker
