// The imitated device's memory for the exchange.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tests/fake_device/fake_device.h"
#include "tests/fake_device/fake_streams.h"
#include "tests/fake_device/thread_copies.h"
#include "transport/mapping/device_sharing.h"
#include "worker/memory/host_memory.h"
#include "worker/optimizer/rules.h"

namespace lockstep::worker {
namespace {

using Later = std::function<void(std::function<void()>)>;

// Of what is asked for one behind the other a device may do those of one kind in any order.
enum class Kind : std::uint8_t { kSum, kNarrowSum, kSquares, kWiden, kCopy, kLoop, kBarrier };

class FakeLoops final : public rules::Loops {
 public:
  FakeLoops(const FakeAddresses& addresses, Later later)
      : addresses_(addresses), later_(std::move(later)) {}

  void SgdPlain(const rules::Slice& slice, const rules::SgdFactors& factors) const override {
    later_([=, this] { host_.SgdPlain(Host(slice), factors); });
  }
  void SgdMomentum(const rules::Slice& slice, const rules::SgdFactors& factors,
                   const rules::MomentumFactors& momentum, bool nesterov,
                   float* velocity) const override {
    later_([=, this] {
      host_.SgdMomentum(Host(slice), factors, momentum, nesterov,
                        addresses_.Host(velocity, slice.count));
    });
  }
  void RmsPropPlain(const rules::Slice& slice, const rules::RmsPropFactors& factors,
                    float* square) const override {
    later_([=, this] {
      host_.RmsPropPlain(Host(slice), factors, addresses_.Host(square, slice.count));
    });
  }
  void RmsPropMomentum(const rules::Slice& slice, const rules::RmsPropFactors& factors,
                       const rules::MomentumFactors& momentum, float* square,
                       float* velocity) const override {
    later_([=, this] {
      host_.RmsPropMomentum(Host(slice), factors, momentum, addresses_.Host(square, slice.count),
                            addresses_.Host(velocity, slice.count));
    });
  }
  void AdamWStep(const rules::Slice& slice, const rules::AdamFactors& factors, float* moment,
                 float* square) const override {
    later_([=, this] {
      host_.AdamWStep(Host(slice), factors, addresses_.Host(moment, slice.count),
                      addresses_.Host(square, slice.count));
    });
  }

 private:
  rules::Slice Host(rules::Slice slice) const {
    slice.parameters = addresses_.Host(slice.parameters, slice.count);
    slice.gradient_sum = addresses_.Host(slice.gradient_sum, slice.count);
    return slice;
  }

  const FakeAddresses& addresses_;
  const rules::Loops& host_ = rules::HostLoops();
  const Later later_;
};

thread_local bool entered = false;

// Asked for by threads of transports, which have entered: UCX takes it from there without a word.
class EnteredCopies final : public ThreadCopies {
 public:
  using ThreadCopies::ThreadCopies;
  void ToPinned(std::byte* pinned, const std::byte* device, std::size_t bytes,
                std::function<void(bool)> done) override {
    Check();
    ThreadCopies::ToPinned(pinned, device, bytes, std::move(done));
  }
  void FromPinned(std::byte* device, const std::byte* pinned, std::size_t bytes,
                  std::function<void(bool)> done) override {
    Check();
    ThreadCopies::FromPinned(device, pinned, bytes, std::move(done));
  }

 private:
  static void Check() {
    LOCKSTEP_CHECK(entered, "the transport's thread has not entered the device");
  }
};

class FakeMemory final : public ExchangeMemory, public transport::DeviceSharing {
 public:
  FakeMemory(std::shared_ptr<FakeAddresses> addresses, const std::string& kind)
      : addresses_(std::move(addresses)), name_(transport::DeviceName::Make(kind, "0")) {}

  bool on_host() const override { return false; }
  Result<std::byte*> Allocate(std::size_t bytes) override { return addresses_->Allocate(bytes); }
  void Free(std::byte* memory, std::size_t /*bytes*/) override { addresses_->Free(memory); }
  Status EnterThread() override {
    entered = true;
    return {};
  }

  bool WeightedSum(std::span<const Input> inputs, float* out, std::size_t n,
                   bool /*large*/) override {
    Ask(Kind::kSum, [=, this, copies = std::vector(inputs.begin(), inputs.end())]() mutable {
      for (Input& input : copies) input.data = addresses_->Host(input.data, n);
      finite_ = worker::WeightedSum(copies, addresses_->Host(out, n), n) && finite_;
    });
    return true;
  }
  void SumOfSquaresByGrain(const float* data, std::size_t n, std::size_t grain,
                           double* out) override {
    Ask(Kind::kSquares, [=, this] {
      worker::SumOfSquaresByGrain(addresses_->Host(data, n), n, grain,
                                  addresses_->Host(out, Grains(n, grain)));
    });
  }
  bool AllFinite(const float* data, std::size_t n) override {
    return worker::AllFinite(addresses_->Host(data, n), n);
  }
  const rules::Loops& update_loops() const override { return loops_; }
  void Copy(float* to, const float* from, std::size_t n, bool /*large*/) override {
    Ask(Kind::kCopy, [=, this] {
      std::memcpy(addresses_->Host(to, n), addresses_->Host(from, n), n * sizeof(float));
    });
  }
  bool WeightedSum(NumberType type, std::span<const NarrowInput> inputs, std::uint16_t* out,
                   std::size_t n, const Rounding& rounding, std::uint64_t first) override {
    Ask(Kind::kNarrowSum, [=, this, copies = std::vector(inputs.begin(), inputs.end())]() mutable {
      for (NarrowInput& input : copies) input.data = addresses_->Host(input.data, n);
      finite_ = worker::WeightedSum(type, copies, addresses_->Host(out, n), n, rounding, first) &&
                finite_;
    });
    return true;
  }
  void SumOfSquaresByGrain(NumberType type, const std::uint16_t* data, std::size_t n,
                           std::size_t grain, double* out) override {
    Ask(Kind::kSquares, [=, this] {
      host_.SumOfSquaresByGrain(type, addresses_->Host(data, n), n, grain,
                                addresses_->Host(out, Grains(n, grain)));
    });
  }
  void Widen(NumberType type, const std::uint16_t* from, float* to, std::size_t n) override {
    Ask(Kind::kWiden,
        [=, this] { worker::Widen(type, addresses_->Host(from, n), addresses_->Host(to, n), n); });
  }
  void Copy(std::uint16_t* to, const std::uint16_t* from, std::size_t n) override {
    Ask(Kind::kCopy, [=, this] {
      std::memcpy(addresses_->Host(to, n), addresses_->Host(from, n), n * sizeof *to);
    });
  }
  bool Narrow(NumberType type, const float* from, std::uint16_t* to, std::size_t n,
              const Rounding& rounding, std::uint64_t first) override {
    return worker::Narrow(type, addresses_->Host(from, n), addresses_->Host(to, n), n, rounding,
                          first);
  }
  void Barrier() override {
    Ask(Kind::kBarrier, [] {});
  }
  bool Finish() override {
    std::vector<Operation> asked = std::exchange(asked_, {});
    for (auto from = asked.begin(); from != asked.end();) {
      const auto to = std::find_if(from, asked.end(),
                                   [&](const Operation& one) { return one.kind != from->kind; });
      // The other way round, as no batch of them may mind.
      for (auto one = to; one != from;) (--one)->carry_out();
      from = to;
    }
    return std::exchange(finite_, true);
  }

  using ExchangeMemory::ToHost;
  void ToHost(std::span<const HostCopy> copies) override {
    for (const HostCopy& copy : copies) {
      std::memcpy(copy.host, addresses_->Host(static_cast<const std::byte*>(copy.from), copy.bytes),
                  copy.bytes);
    }
  }
  void FromHost(void* to, const void* host, std::size_t bytes) override {
    std::memcpy(addresses_->Host(static_cast<std::byte*>(to), bytes), host, bytes);
  }
  void Zero(float* to, std::size_t n) override {
    std::memset(addresses_->Host(to, n), 0, n * sizeof(float));
  }
  transport::DeviceCopies* copies() override { return &copies_; }
  transport::DeviceSharing* sharing() override { return this; }
  ProgramStreams* streams() override { return &streams_; }

  transport::DeviceName name() const override { return name_; }
  Result<Exported> Export(std::uint64_t bytes) override {
    Exported exported;
    exported.data = addresses_->Export(bytes, exported.fd);
    exported.bytes = bytes;
    return exported;
  }
  Result<std::byte*> Import(const transport::UniqueFd& fd, std::uint64_t bytes,
                            const transport::DeviceName& /*of*/) override {
    std::byte* data = addresses_->Import(fd, bytes);
    if (data == nullptr) return Error{ErrorCode::kUnavailable, "the peer's memory is too small"};
    return data;
  }
  void Release(std::byte* data, std::uint64_t /*bytes*/) override { addresses_->Free(data); }

 private:
  struct Operation {
    Kind kind;
    std::function<void()> carry_out;
  };
  void Ask(Kind kind, std::function<void()> carry_out) {
    asked_.push_back({kind, std::move(carry_out)});
  }

  const std::shared_ptr<FakeAddresses> addresses_;
  const transport::DeviceName name_;
  HostMemory host_;
  FakeStreams streams_;
  std::vector<Operation> asked_;  // the reduction thread's
  bool finite_ = true;            // likewise
  const FakeLoops loops_{*addresses_,
                         [this](std::function<void()> loop) { Ask(Kind::kLoop, std::move(loop)); }};
  EnteredCopies copies_{[this](const std::byte* device, std::size_t bytes) {
    return addresses_->Host(device, bytes);
  }};
};

}  // namespace

bool EnteredThread() { return entered; }

std::unique_ptr<ExchangeMemory> MakeFakeMemory(std::shared_ptr<FakeAddresses> addresses,
                                               const std::string& kind) {
  return std::make_unique<FakeMemory>(std::move(addresses), kind);
}

}  // namespace lockstep::worker
