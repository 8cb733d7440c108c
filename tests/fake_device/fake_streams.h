// Streams of an imitated device. What is asked of one is done in order and as late as it may be:
// when somebody waits for it, or when so much has been asked for behind it that any device would
// have come that far.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <set>

#include "worker/memory/program_streams.h"

namespace lockstep::worker {

class FakeStream {
 public:
  // Any thread; it does what was asked for long before.
  void Ask(std::function<void()> operation);
  // Returns when all of it is done.
  void Run() { RunTo(0); }

 private:
  void RunTo(std::size_t left);

  std::mutex running_;  // one operation at a time, in order
  std::mutex mutex_;    // guards asked_
  std::deque<std::function<void()>> asked_;
};

// What a program names as its stream is a FakeStream; null: the device's own one.
class FakeStreams final : public ProgramStreams {
 public:
  void After(void* stream, std::function<void()> then) override { At(stream).Ask(std::move(then)); }
  void Await(void* stream) override {
    At(stream).Run();
    Settle();
  }
  void Settle() override;
  std::shared_ptr<void> Visit() override { return nullptr; }

 private:
  FakeStream& At(void* stream);

  FakeStream own_;
  std::mutex mutex_;
  std::set<FakeStream*> seen_;  // guarded by mutex_
};

}  // namespace lockstep::worker
