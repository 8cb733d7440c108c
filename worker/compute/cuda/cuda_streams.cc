#include "worker/compute/cuda/cuda_streams.h"

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>

#include "worker/compute/cuda/handles.h"
#include "worker/compute/cuda/visitor.h"

namespace lockstep::worker::cuda {
namespace {

// An event marks the present end of a program's stream. A stream of our own waits for that event
// and then calls back: a callback in the program's own stream would delay it.
class CudaStreams final : public ProgramStreams {
 public:
  explicit CudaStreams(int number) : number_(number) {}
  ~CudaStreams() override { Settle(); }

  void After(void* stream, std::function<void()> then) override {
    const Visitor here(number_);
    Check(here.status(), kChoosing);
    auto told = std::make_unique<Told>(Told{this, std::move(then)});
    const std::lock_guard lock(asking_);
    // A wait is for the mark at the time of the call, so one event serves all.
    mark_.Record(static_cast<cudaStream_t>(stream));
    mark_.HoldUp(waiting_);
    {
      const std::lock_guard counting(counting_);
      ++outstanding_;
    }
    if (const cudaError_t asked = cudaStreamAddCallback(waiting_.get(), OnReached, told.get(), 0);
        asked != cudaSuccess) {
      Count();
      Check(asked, "waiting for the program's stream");
    }
    static_cast<void>(told.release());
  }

  void Await(void* stream) override {
    {
      const Visitor here(number_);
      Check(here.status(), kChoosing);
      Event reached;
      reached.Record(static_cast<cudaStream_t>(stream));
      reached.Wait();
    }
    Settle();
  }

  void Settle() override {
    std::unique_lock lock(counting_);
    none_.wait(lock, [this] { return outstanding_ == 0; });
  }

  std::shared_ptr<void> Visit() override {
    auto here = std::make_shared<Visitor>(number_);
    Check(here->status(), kChoosing);
    return here;
  }

 private:
  struct Told {
    CudaStreams* streams;
    std::function<void()> then;
  };

  // It is called whatever happens to the work before it.
  static void CUDART_CB OnReached(cudaStream_t /*stream*/, cudaError_t status, void* data) {
    const std::unique_ptr<Told> told(static_cast<Told*>(data));
    if (status == cudaSuccess) told->then();
    told->streams->Count();
  }

  // Counts one outstanding call less.
  void Count() {
    const std::lock_guard lock(counting_);
    if (--outstanding_ == 0) none_.notify_all();
  }

  const int number_;
  Stream waiting_;
  std::mutex asking_;  // guards mark_
  Event mark_;
  std::mutex counting_;  // guards outstanding_
  std::condition_variable none_;
  std::uint64_t outstanding_ = 0;
};

}  // namespace

std::unique_ptr<ProgramStreams> MakeCudaStreams(int number) {
  return std::make_unique<CudaStreams>(number);
}

}  // namespace lockstep::worker::cuda
