#include "tests/fake_device/fake_streams.h"

#include <utility>

namespace lockstep::worker {

void FakeStream::Ask(std::function<void()> operation) {
  constexpr std::size_t kBehind = 5;
  {
    const std::lock_guard lock(mutex_);
    asked_.push_back(std::move(operation));
  }
  RunTo(kBehind);
}

void FakeStream::RunTo(std::size_t left) {
  const std::lock_guard running(running_);
  for (;;) {
    std::function<void()> operation;
    {
      const std::lock_guard lock(mutex_);
      if (asked_.size() <= left) return;
      operation = std::move(asked_.front());
      asked_.pop_front();
    }
    operation();
  }
}

void FakeStreams::Settle() {
  std::set<FakeStream*> seen;
  {
    const std::lock_guard lock(mutex_);
    seen = seen_;
  }
  for (FakeStream* stream : seen) stream->Run();
}

FakeStream& FakeStreams::At(void* stream) {
  auto* at = stream == nullptr ? &own_ : static_cast<FakeStream*>(stream);
  const std::lock_guard lock(mutex_);
  seen_.insert(at);
  return *at;
}

}  // namespace lockstep::worker
