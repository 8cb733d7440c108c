#include "worker/runtime/crew.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <mutex>
#include <string_view>
#include <system_error>

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

void Crew::Engage(std::size_t helpers) {
  while (helpers_.size() < helpers) {
    try {
      helpers_.push_back(
          std::make_unique<TaskThread>(fmt::format("reduction {}", helpers_.size() + 2).c_str()));
    } catch (const std::system_error& error) {
      spdlog::warn("sums and updates by {} threads: no more are to be had: {}", helpers_.size() + 1,
                   error.what());
      wanted_.store(helpers_.size() + 1, std::memory_order_relaxed);
      return;
    }
  }
}

void Crew::ForEach(std::size_t count, const std::function<void(std::size_t)>& work) {
  const std::size_t helpers = std::max<std::size_t>(wanted_.load(std::memory_order_relaxed), 1) - 1;
  if (helpers_.size() > helpers) helpers_.resize(helpers);
  const std::size_t needed = std::min(helpers, std::max<std::size_t>(count, 1) - 1);
  Engage(needed);
  if (needed == 0 || helpers_.empty()) {
    for (std::size_t i = 0; i < count; ++i) work(i);
    return;
  }
  const auto job = std::make_shared<Job>(count, work);
  for (std::size_t i = 0; i < std::min(needed, helpers_.size()); ++i) {
    helpers_[i]->Post([job] { job->Help(); });
  }
  job->Lead();
}

void CrewSize::Saw(const msg::Form& form) {
  for (const auto* list : {&form.connect_to, &form.expect}) {
    for (const PeerInfo& info : *list) {
      if (info.host_id == setup_.host_id) here_.insert(info.member);
    }
  }
}

std::size_t CrewSize::threads() const {
  if (setup_.configured > 0) return setup_.configured;
  const std::size_t share =
      setup_.environment > 0 ? setup_.environment : setup_.processors / (here_.size() + 1);
  return std::clamp<std::size_t>(share, 1, kMostByItself);
}

std::string CrewSize::Words() const {
  const std::string why =
      setup_.configured > 0 ? "exchange.threads"
      : setup_.environment > 0
          ? "OMP_NUM_THREADS"
          : fmt::format("{} processors for {} worker{} on this host", setup_.processors,
                        here_.size() + 1, here_.empty() ? "" : "s");
  return fmt::format("sums and updates by up to {} thread{}: {}", threads(),
                     threads() == 1 ? "" : "s", why);
}

std::uint32_t ThreadsOf(const char* value) {
  if (value == nullptr) return 0;
  const std::string_view text(value);
  std::uint32_t threads = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
  const bool ends = end == text.data() + text.size() || *end == ',' || *end == ' ';
  return error == std::errc() && ends ? threads : 0;
}

}  // namespace lockstep::worker
