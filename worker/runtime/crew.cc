#include "worker/runtime/crew.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

namespace lockstep::worker {

// Shared with helpers, which may come when it is over.
class Crew::Job {
 public:
  Job(std::size_t count, const std::function<void(std::size_t)>& work)
      : count_(count), work_(work) {}

  void Help() {
    {
      std::lock_guard lock(mutex_);
      if (over_) return;
      ++helping_;
    }
    Take();
    std::lock_guard lock(mutex_);
    if (--helping_ == 0) done_.notify_one();
  }

  // Of the caller. After it `work` is not touched any more.
  void Lead() {
    Take();
    std::unique_lock lock(mutex_);
    over_ = true;
    done_.wait(lock, [this] { return helping_ == 0; });
  }

 private:
  void Take() {
    for (;;) {
      const std::size_t i = next_.fetch_add(1, std::memory_order_relaxed);
      if (i >= count_) return;
      work_(i);
    }
  }

  const std::size_t count_;
  const std::function<void(std::size_t)>& work_;
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_;
  std::condition_variable done_;
  std::size_t helping_ = 0;
  bool over_ = false;
};

void Crew::ForEach(std::size_t count, const std::function<void(std::size_t)>& work) {
  const std::size_t helpers = std::max<std::size_t>(wanted_.load(std::memory_order_relaxed), 1) - 1;
  if (helpers_.size() > helpers) helpers_.resize(helpers);
  const std::size_t needed = std::min(helpers, std::max<std::size_t>(count, 1) - 1);
  if (needed == 0) {
    for (std::size_t i = 0; i < count; ++i) work(i);
    return;
  }
  while (helpers_.size() < needed) helpers_.push_back(std::make_unique<TaskThread>("reduction"));
  const auto job = std::make_shared<Job>(count, work);
  for (std::size_t i = 0; i < needed; ++i) helpers_[i]->Post([job] { job->Help(); });
  job->Lead();
}

void CrewSize::Saw(const msg::Form& form) {
  for (const auto* list : {&form.connect_to, &form.expect}) {
    for (const PeerInfo& info : *list) {
      if (info.host_id == host_id_) here_.insert(info.member);
    }
  }
}

std::size_t CrewSize::threads() const {
  if (threads_ > 0) return threads_;
  const std::size_t share = std::min(processors_.usable, processors_.shared / (here_.size() + 1));
  return std::clamp<std::size_t>(share, 1, kMostByItself);
}

std::string CrewSize::Words() const {
  std::string why = "exchange.threads";
  if (threads_ == 0) {
    why = fmt::format("{} processors for {} worker{} on this host", processors_.shared,
                      here_.size() + 1, here_.empty() ? "" : "s");
    if (processors_.usable < processors_.shared) {
      why += fmt::format(", {} for this one", processors_.usable);
    }
  }
  return fmt::format("sums and updates by {} threads: {}", threads(), why);
}

}  // namespace lockstep::worker
