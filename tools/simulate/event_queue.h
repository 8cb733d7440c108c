// Virtual time: runs events in the order of time and, at one time, of scheduling. An event is a
// callable that is kept in place: one of usual size allocates nothing once the queue has grown.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/time.h"

namespace lockstep::simulate {

// A callable that is moved, not copied; up to kInPlace bytes without allocation.
class Task {
 public:
  static constexpr std::size_t kInPlace = 96;

  Task() = default;
  // A lambda is meant to become a Task and is none: this constructor does not hide the others.
  template <class F>
  requires(!std::is_same_v<std::decay_t<F>, Task>) Task(F&& f) {  // NOLINT
    using Callable = std::decay_t<F>;
    // NOLINTNEXTLINE(misc-redundant-expression): in some instances only
    if constexpr (sizeof(Callable) <= kInPlace && alignof(Callable) <= alignof(std::max_align_t) &&
                  std::is_nothrow_move_constructible_v<Callable>) {
      ::new (static_cast<void*>(storage_.data())) Callable(std::forward<F>(f));
      kind_ = &kKind<Callable>;
    } else {
      auto held = [owned = std::make_unique<Callable>(std::forward<F>(f))] { (*owned)(); };
      using Held = decltype(held);
      ::new (static_cast<void*>(storage_.data())) Held(std::move(held));
      kind_ = &kKind<Held>;
    }
  }
  Task(Task&& other) noexcept { Take(other); }
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      Clear();
      Take(other);
    }
    return *this;
  }
  ~Task() { Clear(); }

  void operator()() { kind_->run(storage_.data()); }

 private:
  struct Kind {
    void (*run)(void* callable);
    void (*move)(void* from, void* to);  // and destroys the source of the move
    void (*destroy)(void* callable);
  };
  template <class F>
  static constexpr Kind kKind = {
      [](void* callable) { (*static_cast<F*>(callable))(); },
      [](void* from, void* to) {
        ::new (to) F(std::move(*static_cast<F*>(from)));
        static_cast<F*>(from)->~F();
      },
      [](void* callable) { static_cast<F*>(callable)->~F(); },
  };

  void Take(Task& other) {
    kind_ = std::exchange(other.kind_, nullptr);
    if (kind_ != nullptr) kind_->move(other.storage_.data(), storage_.data());
  }
  void Clear() {
    if (kind_ != nullptr) std::exchange(kind_, nullptr)->destroy(storage_.data());
  }

  alignas(std::max_align_t) std::array<std::byte, kInPlace> storage_;
  const Kind* kind_ = nullptr;
};

class EventQueue {
 public:
  explicit EventQueue(Time start) : now_(start) {}

  Time now() const { return now_; }
  bool empty() const { return heap_.empty(); }
  Time next() const { return heap_.empty() ? kNever : heap_.front().time; }
  std::uint64_t run() const { return run_; }  // events so far

  void At(Time time, Task task) {
    LOCKSTEP_CHECK(time >= now_, "an event in the past");
    std::uint32_t slot = 0;
    if (free_.empty()) {
      slot = static_cast<std::uint32_t>(tasks_.size());
      tasks_.push_back(std::move(task));
    } else {
      slot = free_.back();
      free_.pop_back();
      tasks_[slot] = std::move(task);
    }
    heap_.push_back({time, order_++, slot});
    std::push_heap(heap_.begin(), heap_.end());
  }
  void After(Duration delay, Task task) { At(now_ + delay, std::move(task)); }

  // Moves time on to the earliest event and runs it.
  void RunNext() {
    std::pop_heap(heap_.begin(), heap_.end());
    const Scheduled next = heap_.back();
    heap_.pop_back();
    now_ = next.time;
    ++run_;
    Task task = std::move(tasks_[next.slot]);
    free_.push_back(next.slot);
    task();
  }

 private:
  struct Scheduled {
    Time time;
    std::uint64_t order;
    std::uint32_t slot;
    bool operator<(const Scheduled& other) const {  // the earliest is the greatest
      return time != other.time ? time > other.time : order > other.order;
    }
  };

  Time now_;
  std::uint64_t order_ = 0;
  std::uint64_t run_ = 0;
  std::vector<Scheduled> heap_;
  std::deque<Task> tasks_;  // by slot; stays where it is
  std::vector<std::uint32_t> free_;
};

}  // namespace lockstep::simulate
