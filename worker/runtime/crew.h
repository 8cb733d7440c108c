// The threads that carry out one operation together: who asks for it, and helpers that wait for
// work in between. The work done, and its bits, do not depend on how many there are.
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
#include "worker/runtime/task_thread.h"

namespace lockstep::worker {

class Crew {
 public:
  // How many threads there are from the next operation on, the one that asks among them; at least
  // 1, which is what it begins with. Any thread.
  void Use(std::size_t threads) { wanted_.store(threads, std::memory_order_relaxed); }

  std::size_t threads() const { return wanted_.load(std::memory_order_relaxed); }

  // work(i) once for each i below `count`, by several threads at a time, in any order; returns when
  // all are done, and sees what they have written. Helpers that come too late, because the
  // processors have other work, are not waited for; where the system has no more threads to give,
  // there are fewer. `work` throws nothing. One caller at a time.
  void ForEach(std::size_t count, const std::function<void(std::size_t)>& work);

 private:
  class Job;

  // Up to so many, as far as there are threads to be had.
  void Engage(std::size_t helpers);

  std::atomic<std::size_t> wanted_{1};
  std::vector<std::unique_ptr<TaskThread>> helpers_;  // of the caller
};

// How many threads a worker sums and updates with: as many as exchange.threads says. With auto as
// many as the environment says that each process of the job may use (OMP_NUM_THREADS). Else its
// share of the processors that it may run on, among the workers of its host; at most kMostByItself.
// Not thread-safe.
class CrewSize {
 public:
  // More seldom gain anything: the memory is what they wait for.
  static constexpr std::size_t kMostByItself = 8;

  struct Setup {
    std::uint32_t configured = 0;   // 0: auto
    std::uint32_t environment = 0;  // 0: it says nothing
    std::size_t processors = 1;     // that this process may use
    std::string host_id = {};       // of this worker
  };
  explicit CrewSize(Setup setup) : setup_(std::move(setup)) {}

  // Of the other workers, which of them are on this host, and which are no more.
  void Saw(const msg::Form& form);
  void Saw(const msg::MemberLeft& left) { here_.erase(left.member); }

  std::size_t threads() const;
  // As "sums and updates by up to 4 threads: ...".
  std::string Words() const;

 private:
  const Setup setup_;
  std::set<MemberId> here_;  // the others
};

// The first number of a list as OMP_NUM_THREADS has it; 0: there is none. `value` may be null.
std::uint32_t ThreadsOf(const char* value);

}  // namespace lockstep::worker
