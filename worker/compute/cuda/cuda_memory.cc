#include "worker/compute/cuda/cuda_memory.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "transport/staging/device_copies.h"
#include "worker/compute/compute.h"
#include "worker/compute/cuda/copies.h"
#include "worker/compute/cuda/cuda_sharing.h"
#include "worker/compute/cuda/cuda_streams.h"
#include "worker/compute/cuda/finite.h"
#include "worker/compute/cuda/handles.h"
#include "worker/compute/cuda/narrow.h"
#include "worker/compute/cuda/square_sums.h"
#include "worker/compute/cuda/update_kernels.h"
#include "worker/compute/cuda/visitor.h"
#include "worker/compute/cuda/weighted_sum.h"

namespace lockstep::worker::cuda {
namespace {

// Chooses the device for the calling thread.
struct Chosen {
  explicit Chosen(int number) { Check(cudaSetDevice(number), kChoosing); }
};

// Chooses it for a while: a call from any thread, also a program's, leaves the thread's device as
// it was.
struct Visiting {
  explicit Visiting(int number) : visitor(number) { Check(visitor.status(), kChoosing); }
  Visitor visitor;
};

// The error of a call that does not throw.
Error Failed(const char* what, cudaError_t status) {
  static_cast<void>(cudaGetLastError());  // the next kernel would report it again
  return Error{ErrorCode::kUnavailable,
               fmt::format("the GPU failed: {}: {}", what, cudaGetErrorString(status))};
}

Error NoMemory(const char* what, std::size_t bytes, cudaError_t status) {
  static_cast<void>(cudaGetLastError());  // the next kernel would report it again
  return Error{ErrorCode::kUnavailable,
               fmt::format("cannot have {} MiB of {} memory: {}", (bytes + (1 << 20) - 1) >> 20,
                           what, cudaGetErrorString(status))};
}

// Copies in one direction. Each stream waits for the callback of its last copy, so there are
// several.
class CopyStreams {
 public:
  void Copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
            std::function<void(bool)> done) {
    const Stream& stream = streams_[next_++ % streams_.size()];
    auto told = std::make_unique<std::function<void(bool)>>(std::move(done));
    const cudaError_t copied = cudaMemcpyAsync(to, from, bytes, kind, stream.get());
    // The callback is called whatever happens to the copy.
    if (copied == cudaSuccess &&
        cudaStreamAddCallback(stream.get(), OnCopied, told.get(), 0) == cudaSuccess) {
      static_cast<void>(told.release());
      return;
    }
    static_cast<void>(cudaGetLastError());
    (*told)(false);
  }

 private:
  static void CUDART_CB OnCopied(cudaStream_t /*stream*/, cudaError_t status, void* data) {
    const std::unique_ptr<std::function<void(bool)>> told(
        static_cast<std::function<void(bool)>*>(data));
    (*told)(status == cudaSuccess);
  }

  std::array<Stream, 4> streams_;
  std::atomic<std::size_t> next_ = 0;  // for all data threads: each transport probes on its own
};

// Streams for calls that wait for their own work. The thread's own stream (cudaStreamPerThread)
// would not do: it and the default stream wait for each other, and the program may have a whole
// backward pass under way there.
class CallStreams {
 public:
  class Borrowed {
   public:
    explicit Borrowed(CallStreams& from) : from_(from), stream_(from.Take()) {}
    ~Borrowed() { from_.Give(std::move(stream_)); }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;
    cudaStream_t get() const { return stream_->get(); }
    void Wait() const { Check(cudaStreamSynchronize(get()), "copying"); }

   private:
    CallStreams& from_;
    std::unique_ptr<Stream> stream_;
  };

 private:
  std::unique_ptr<Stream> Take() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        auto stream = std::move(idle_.back());
        idle_.pop_back();
        return stream;
      }
    }
    return std::make_unique<Stream>();
  }
  void Give(std::unique_ptr<Stream> stream) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(stream));
  }

  std::mutex mutex_;
  std::vector<std::unique_ptr<Stream>> idle_;  // as many as there have been concurrent calls
};

// A word that a kernel writes and the host reads.
class Flag {
 public:
  Flag() { Clear(); }
  unsigned* get() const { return word_; }
  // Call it after kernels that are known to be done.
  bool set() const { return *static_cast<volatile unsigned*>(word_) != 0; }
  void Clear() { *static_cast<volatile unsigned*>(word_) = 0; }
  void Free() { memory_.Free(); }

 private:
  PinnedMemory memory_;  // the device has it under the same address
  unsigned* const word_ = reinterpret_cast<unsigned*>(memory_.Need(sizeof(unsigned)));
};

class CudaMemory final : public ExchangeMemory, public transport::DeviceCopies {
 public:
  // The calling thread must have chosen the GPU.
  explicit CudaMemory(int number) : number_(number) {}
  ~CudaMemory() override {
    ending_.emplace(number_);
    cudaDeviceSynchronize();
    not_finite_.Free();
    found_.Free();
  }

  bool on_host() const override { return false; }
  Result<std::byte*> Allocate(std::size_t bytes) override {
    const Visitor here(number_);
    if (here.status() != cudaSuccess) return Failed(kChoosing, here.status());
    void* memory = nullptr;
    bytes = std::max<std::size_t>(bytes, 1);
    if (const cudaError_t status = cudaMalloc(&memory, bytes); status != cudaSuccess) {
      return NoMemory("the GPU's", bytes, status);
    }
    try {
      const CallStreams::Borrowed stream(calls_);
      Check(cudaMemsetAsync(memory, 0, bytes, stream.get()), "clearing memory");
      stream.Wait();
    } catch (const DeviceError& error) {
      cudaFree(memory);
      return Error{ErrorCode::kUnavailable, error.what()};
    }
    return static_cast<std::byte*>(memory);
  }
  void Free(std::byte* memory, std::size_t /*bytes*/) override {
    const Visitor here(number_);  // on the thread of the last owner
    cudaFree(memory);
  }

  Status EnterThread() override {
    const cudaError_t chosen = cudaSetDevice(number_);
    return chosen == cudaSuccess ? Status() : Failed(kChoosing, chosen);
  }

  bool WeightedSum(std::span<const Input> inputs, float* out, std::size_t n,
                   bool /*large*/) override {
    const Chosen here(number_);
    AskAllBut(&sums_);
    sums_.Add(inputs, out, n);
    return true;
  }
  void SumOfSquaresByGrain(const float* data, std::size_t n, std::size_t grain,
                           double* out) override {
    LOCKSTEP_CHECK(grain > 0);
    const Chosen here(number_);
    AskAllBut(&squares_);
    squares_.Add(NumberType::kFp32, data, n, grain, out);
  }
  bool AllFinite(const float* data, std::size_t n) override {
    const Visiting here(number_);
    const std::lock_guard looking(looking_);
    found_.Clear();
    const CallStreams::Borrowed stream(calls_);
    FindNotFinite(stream.get(), data, n, found_.get());
    stream.Wait();
    return !found_.set();
  }
  bool Narrow(NumberType type, const float* from, std::uint16_t* to, std::size_t n,
              const Rounding& rounding, std::uint64_t first) override {
    const Visiting here(number_);
    const std::lock_guard looking(looking_);
    found_.Clear();
    const CallStreams::Borrowed stream(calls_);
    NarrowNumbers(stream.get(), type, from, to, n, rounding, first, found_.get());
    stream.Wait();
    return !found_.set();
  }
  const rules::Loops& update_loops() const override {
    const Chosen here(number_);  // for the thread that is about to use them
    AskAllBut(&loops_);
    return loops_;
  }
  void Copy(float* to, const float* from, std::size_t n, bool /*large*/) override {
    const Chosen here(number_);
    AskAllBut(&copies_);
    copies_.Add(to, from, n);
  }
  bool WeightedSum(NumberType type, std::span<const NarrowInput> inputs, std::uint16_t* out,
                   std::size_t n, const Rounding& rounding, std::uint64_t first) override {
    const Chosen here(number_);
    AskAllBut(&narrow_sums_);
    narrow_sums_.Add(type, inputs, out, n, rounding, first);
    return true;
  }
  void SumOfSquaresByGrain(NumberType type, const std::uint16_t* data, std::size_t n,
                           std::size_t grain, double* out) override {
    LOCKSTEP_CHECK(grain > 0);
    const Chosen here(number_);
    AskAllBut(&squares_);
    squares_.Add(type, data, n, grain, out);
  }
  void Widen(NumberType type, const std::uint16_t* from, float* to, std::size_t n) override {
    const Chosen here(number_);
    AskAllBut(&widened_);
    widened_.Add(type, from, to, n);
  }
  void Copy(std::uint16_t* to, const std::uint16_t* from, std::size_t n) override {
    const Chosen here(number_);
    AskAllBut(&copies_);
    copies_.Add(to, from, n);
  }
  void Barrier() override {
    const Chosen here(number_);
    AskAllBut(nullptr);
  }
  bool Finish() override {
    const Chosen here(number_);
    AskAllBut(nullptr);
    finished_.Record(operations_);
    finished_.Wait();
    const bool finite = !not_finite_.set();
    not_finite_.Clear();
    return finite;
  }

  using ExchangeMemory::ToHost;
  void ToHost(std::span<const HostCopy> copies) override {
    const Visiting here(number_);
    const CallStreams::Borrowed stream(calls_);
    for (const HostCopy& copy : copies) {
      Check(cudaMemcpyAsync(copy.host, copy.from, copy.bytes, cudaMemcpyDeviceToHost, stream.get()),
            "copying to the host");
    }
    stream.Wait();
  }
  void FromHost(void* to, const void* host, std::size_t bytes) override {
    const Visiting here(number_);
    const CallStreams::Borrowed stream(calls_);
    Check(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream.get()),
          "copying to the device");
    stream.Wait();
  }
  void Zero(float* to, std::size_t n) override {
    const Visiting here(number_);
    const CallStreams::Borrowed stream(calls_);
    Check(cudaMemsetAsync(to, 0, n * sizeof(float), stream.get()), "clearing memory");
    stream.Wait();
  }
  transport::DeviceCopies* copies() override { return this; }
  transport::DeviceSharing* sharing() override { return sharing_.get(); }
  ProgramStreams* streams() override { return streams_.get(); }

  Result<std::byte*> AllocatePinned(std::size_t bytes) override {
    const Visitor here(number_);
    if (here.status() != cudaSuccess) return Failed(kChoosing, here.status());
    void* memory = nullptr;
    if (const cudaError_t status = cudaMallocHost(&memory, bytes); status != cudaSuccess) {
      return NoMemory("pinned", bytes, status);
    }
    return static_cast<std::byte*>(memory);
  }
  void FreePinned(std::byte* memory, std::size_t /*bytes*/) override {
    const Visitor here(number_);
    cudaFreeHost(memory);
  }
  void ToPinned(std::byte* pinned, const std::byte* device, std::size_t bytes,
                std::function<void(bool)> done) override {
    Begin(out_, pinned, device, bytes, cudaMemcpyDeviceToHost, std::move(done));
  }
  void FromPinned(std::byte* device, const std::byte* pinned, std::size_t bytes,
                  std::function<void(bool)> done) override {
    Begin(in_, device, pinned, bytes, cudaMemcpyHostToDevice, std::move(done));
  }

 private:
  // An exception would reach nobody on the data thread: a failed device is an answer as well.
  void Begin(CopyStreams& streams, void* to, const void* from, std::size_t bytes,
             cudaMemcpyKind kind, std::function<void(bool)> done) const {
    if (cudaSetDevice(number_) == cudaSuccess) {
      return streams.Copy(to, from, bytes, kind, std::move(done));
    }
    static_cast<void>(cudaGetLastError());
    done(false);
  }

  // Starts the collected operations of all kinds but this one.
  void AskAllBut(const void* kind) const {
    const auto ask = [&](auto& batch) {
      if (&batch != kind) batch.Ask();
    };
    ask(copies_);
    ask(sums_);
    ask(narrow_sums_);
    ask(widened_);
    ask(squares_);
    ask(loops_);
  }

  const int number_;
  std::optional<Visitor> ending_;  // for the thread that ends this, until all members below are
                                   // gone
  const std::unique_ptr<transport::DeviceSharing> sharing_ = MakeCudaSharing(number_);
  const std::unique_ptr<ProgramStreams> streams_ = MakeCudaStreams(number_);
  CallStreams calls_;
  Stream operations_;
  Event finished_;
  std::mutex looking_;  // guards found_
  Flag found_;          // for AllFinite and Narrow
  // Operations that are collected until one of another kind is requested.
  Flag not_finite_;
  mutable CopyBatch copies_{operations_.get()};
  mutable SumBatch sums_{operations_.get(), not_finite_.get()};
  mutable NarrowSumBatch narrow_sums_{operations_.get(), not_finite_.get()};
  mutable WidenBatch widened_{operations_.get()};
  mutable SquareBatch squares_{operations_.get()};
  const UpdateLoops loops_{operations_.get()};
  CopyStreams out_;
  CopyStreams in_;
};

}  // namespace

std::unique_ptr<ExchangeMemory> MakeCudaMemory(int number) {
  const Visiting here(number);  // a program's thread makes it, too
  return std::make_unique<CudaMemory>(number);
}

}  // namespace lockstep::worker::cuda
