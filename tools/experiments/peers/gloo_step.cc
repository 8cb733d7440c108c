// A step with Gloo's all-reduce over TCP on the loopback device. The arguments are RANK SIZE FOLDER
// ring|bcube|halving-doubling|ring-chunked BYTES:ROUNDS ...
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <memory>

#include "tools/experiments/peers/measure.h"

namespace {

class Gloo final : public peers::Library {
 public:
  Gloo(int rank, int size, const std::string& folder, std::string algorithm)
      : context_(std::make_shared<gloo::rendezvous::Context>(rank, size)),
        algorithm_(std::move(algorithm)) {
    gloo::transport::tcp::attr attributes;
    attributes.iface = "lo";
    gloo::rendezvous::FileStore store(folder);
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    context_->connectFullMesh(store, device);
  }
  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }

  void AllReduce(float* data, std::size_t n) override {
    if (algorithm_ == "ring" || algorithm_ == "bcube") {
      gloo::AllreduceOptions options(context_);
      options.setAlgorithm(algorithm_ == "ring" ? gloo::AllreduceOptions::Algorithm::RING
                                                : gloo::AllreduceOptions::Algorithm::BCUBE);
      options.setOutput(data, n);
      void (*sum)(void*, const void*, const void*, std::size_t) = &gloo::sum<float>;
      options.setReduceFunction(gloo::AllreduceOptions::Func(sum));
      gloo::allreduce(options);
      return;
    }
    // Algorithms are prepared for one buffer and run again and again.
    if (data != data_ || n != n_) {
      data_ = data;
      n_ = n;
      if (algorithm_ == "halving-doubling") {
        kept_ = std::make_unique<gloo::AllreduceHalvingDoubling<float>>(
            context_, std::vector<float*>{data}, static_cast<int>(n));
      } else {
        kept_ = std::make_unique<gloo::AllreduceRingChunked<float>>(
            context_, std::vector<float*>{data}, static_cast<int>(n));
      }
    }
    kept_->run();
  }

  void Barrier() override {
    gloo::BarrierOptions options(context_);
    gloo::barrier(options);
  }

  std::vector<std::int64_t> Gather(std::int64_t first, std::int64_t second) override {
    std::vector<std::int64_t> own = {first, second};
    std::vector<std::int64_t> all(2 * static_cast<std::size_t>(size()));
    gloo::AllgatherOptions options(context_);
    options.setInput(own.data(), own.size());
    options.setOutput(all.data(), all.size());
    gloo::allgather(options);
    return all;
  }

 private:
  std::shared_ptr<gloo::rendezvous::Context> context_;
  const std::string algorithm_;
  std::unique_ptr<gloo::Algorithm> kept_;
  float* data_ = nullptr;
  std::size_t n_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) peers::Fail("usage: gloo_step RANK SIZE FOLDER ALGORITHM BYTES:ROUNDS ...");
  try {
    Gloo gloo(std::atoi(argv[1]), std::atoi(argv[2]), argv[3], argv[4]);
    peers::Measure(gloo, {argv + 5, argv + argc});
  } catch (const std::exception& error) {
    peers::Fail(error.what());
  }
  return 0;
}
