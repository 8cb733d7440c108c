// What the exchange does in the GPU's memory has the bits of what it does in the host's.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/device.h"
#include "transport/staging/device_copies.h"
#include "worker/memory/host_memory.h"
#include "worker/memory/program_streams.h"
#include "worker/optimizer/optimizer.h"

namespace lockstep::worker {
namespace {

// Floats in some memory.
class Floats {
 public:
  Floats(ExchangeMemory& memory, const std::vector<float>& values)
      : memory_(memory), count_(values.size()) {
    auto data = memory.Allocate(count_ * sizeof(float));
    LOCKSTEP_CHECK(data.ok(), "{}", data.error().message);
    data_ = reinterpret_cast<float*>(*data);
    memory.FromHost(data_, values.data(), count_ * sizeof(float));
  }
  Floats(Floats&& other) noexcept
      : memory_(other.memory_), count_(other.count_), data_(std::exchange(other.data_, nullptr)) {}
  ~Floats() {
    if (data_ != nullptr) memory_.Free(reinterpret_cast<std::byte*>(data_), count_ * sizeof(float));
  }
  float* get() const { return data_; }
  std::vector<float> Read() const {
    std::vector<float> values(count_);
    memory_.ToHost(values.data(), data_, count_ * sizeof(float));
    return values;
  }

 private:
  ExchangeMemory& memory_;
  std::size_t count_;
  float* data_ = nullptr;
};

class GpuMemory : public testing::Test {
 protected:
  // What `work(memory)` gives on the host and on the GPU.
  template <class Work>
  auto OnBoth(Work work) {
    auto on_host = work(static_cast<ExchangeMemory&>(host_));
    return std::pair(std::move(on_host), work(*device_));
  }

  std::unique_ptr<Compute> gpu_ = Gpu();
  std::shared_ptr<ExchangeMemory> device_ = gpu_->MakeExchangeMemory();
  HostMemory host_;
};

TEST_F(GpuMemory, BeginsZeroedAndComesBack) {
  EXPECT_FALSE(device_->on_host());
  const std::vector<float> values = RandomFloats(100001, 1);
  const Floats some(*device_, values);
  EXPECT_TRUE(SameBits(some.Read(), values));
  device_->Zero(some.get() + 1, 99999);
  std::vector<float> expected(100001, 0);
  expected.front() = values.front();
  expected.back() = values.back();
  EXPECT_TRUE(SameBits(some.Read(), expected));
  auto fresh = device_->Allocate(4096);
  ASSERT_TRUE(fresh.ok());
  std::vector<float> found(1024, -1);
  device_->ToHost(found.data(), *fresh, 4096);
  EXPECT_EQ(found, std::vector<float>(1024, 0));
  device_->Free(*fresh, 4096);
}

TEST_F(GpuMemory, MoreThanThereIsIsAnErrorInWords) {
  const auto memory = device_->Allocate(std::size_t{1} << 50);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.error().code, ErrorCode::kUnavailable);
  // And is not told again.
  EXPECT_TRUE(SameBits(Floats(*device_, {1, 2}).Read(), {1, 2}));
}

TEST_F(GpuMemory, SumsOfSquaresHaveTheBitsOfTheCpu) {
  for (const std::size_t n : {1u, 15u, 16u, 17u, 1023u, 1024u, 1025u, 5000u, 1000003u}) {
    for (const std::size_t grain : {16u, 1000u, 1024u}) {
      const std::vector<float> values = RandomFloats(n, n, -100, 100);
      const auto [expected, found] = OnBoth([&](ExchangeMemory& memory) {
        const Floats data(memory, values);
        const Floats out(memory, std::vector<float>(2 * Grains(n, grain), -1));
        memory.SumOfSquaresByGrain(data.get(), n, grain, reinterpret_cast<double*>(out.get()));
        memory.Finish();
        return out.Read();
      });
      EXPECT_TRUE(SameBits(found, expected)) << n << " by " << grain;
    }
  }
}

OptimizerSection Rule(const std::string& name, double momentum, bool nesterov) {
  OptimizerSection section;
  section.name = name;
  section.momentum = momentum;
  section.nesterov = nesterov;
  section.weight_decay = 0.01;
  return section;
}

TEST_F(GpuMemory, TheOptimizersStepHasTheBitsOfTheCpu) {
  constexpr std::size_t kCount = 100003;
  for (const OptimizerSection& section :
       {Rule("sgd", 0, false), Rule("sgd", 0.9, false), Rule("sgd", 0.9, true),
        Rule("rmsprop", 0, false), Rule("rmsprop", 0.9, false), Rule("adamw", 0, false)}) {
    const auto made = MakeOptimizer(section);
    ASSERT_TRUE(made.ok()) << made.error().message;
    const Optimizer& optimizer = **made;
    // The parameters, then the state.
    const auto [expected, found] = OnBoth([&](ExchangeMemory& memory) {
      std::vector<Floats> tensors;
      tensors.emplace_back(memory, RandomFloats(kCount, 1));
      for (std::size_t i = 0; i < optimizer.state_names().size(); ++i) {
        tensors.emplace_back(memory, std::vector<float>(kCount, 0));
      }
      for (std::uint64_t update = 1; update <= 5; ++update) {
        const Floats sum(memory, RandomFloats(kCount, 100 + update, -50, 50));
        const UpdateScalars scalars{.scale = 1.0f / 64,
                                    .clip_factor = 0.75f,
                                    .learning_rate = 0.05f,
                                    .fraction = update == 3 ? 0.3f : 1.0f,
                                    .steps = update};
        // More pieces than a kernel takes, the first one last.
        for (std::size_t at = kCount; at > 0;) {
          const std::size_t count = at > 1001 ? std::min<std::size_t>(at - 1001, 700) : at;
          const std::size_t first = at - count;
          at = first;
          std::vector<float*> state;
          for (std::size_t t = 1; t < tensors.size(); ++t) {
            state.push_back(tensors[t].get() + first);
          }
          optimizer.ApplyBy(memory.update_loops(), scalars,
                            {.first = first,
                             .count = count,
                             .parameters = tensors[0].get() + first,
                             .state = state,
                             .gradient_sum = sum.get() + first});
        }
        memory.Finish();
      }
      std::vector<std::vector<float>> read;
      for (const Floats& tensor : tensors) read.push_back(tensor.Read());
      return read;
    });
    for (std::size_t t = 0; t < expected.size(); ++t) {
      EXPECT_TRUE(SameBits(found[t], expected[t])) << section.name << " tensor " << t;
    }
  }
}

TEST_F(GpuMemory, SumsAndCopiesFollowEachOther) {
  constexpr std::size_t kCount = 100001;
  const auto [expected, found] = OnBoth([&](ExchangeMemory& memory) {
    const Floats a(memory, RandomFloats(kCount, 1));
    const Floats b(memory, RandomFloats(kCount, 2));
    const Floats sum(memory, std::vector<float>(kCount, -1));
    const Floats copy(memory, std::vector<float>(kCount, -1));
    const std::vector<Input> inputs = {{a.get(), 0.3f}, {b.get(), 0.7f}};
    memory.WeightedSum(inputs, sum.get(), kCount, /*large=*/true);
    memory.Copy(copy.get(), sum.get(), kCount, /*large=*/true);
    memory.Finish();
    return copy.Read();
  });
  EXPECT_TRUE(SameBits(found, expected));
}

// More of them than one kernel takes, of any length, side by side and askew.
TEST_F(GpuMemory, ManyCopiesAtOnce) {
  constexpr std::size_t kCount = 3'000'001;
  std::vector<float> values = RandomFloats(kCount, 1);
  values[17] = std::numeric_limits<float>::quiet_NaN();
  values[18] = std::numeric_limits<float>::infinity();
  values[19] = -0.0f;
  std::vector<std::pair<std::size_t, std::size_t>> pieces;  // first, count
  for (std::size_t at = 0, n = 1; at + n + 5 < kCount; at += n, n = n * 7 % 40009 + 1) {
    pieces.emplace_back(at, n);
  }
  ASSERT_GT(pieces.size(), 140u);
  for (const std::size_t askew : {0u, 1u, 2u, 3u}) {
    const auto [expected, found] = OnBoth([&](ExchangeMemory& memory) {
      const Floats from(memory, values);
      const Floats to(memory, std::vector<float>(kCount, -1));
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        if (i % 5 == 4) continue;  // what lies between is left alone
        const auto [first, count] = pieces[i];
        memory.Copy(to.get() + first + askew, from.get() + first, i % 3 == 0 ? count - 1 : count,
                    /*large=*/false);
      }
      memory.Finish();
      return to.Read();
    });
    EXPECT_TRUE(SameBits(found, expected)) << askew;
  }
}

// Of 16 bits, in some memory.
class Halves {
 public:
  Halves(ExchangeMemory& memory, const std::vector<std::uint16_t>& values)
      : memory_(memory), floats_(memory, std::vector<float>(values.size() / 2 + 1)) {
    memory.FromHost(get(), values.data(), values.size() * sizeof values[0]);
  }
  std::uint16_t* get() const { return reinterpret_cast<std::uint16_t*>(floats_.get()); }
  std::vector<std::uint16_t> Read(std::size_t count) const {
    std::vector<std::uint16_t> values(count);
    memory_.ToHost(values.data(), get(), count * sizeof values[0]);
    return values;
  }

 private:
  ExchangeMemory& memory_;
  Floats floats_;
};

TEST_F(GpuMemory, NumbersOfSixteenBitsHaveTheBits) {
  constexpr std::size_t kCount = 300'001;
  constexpr std::size_t kTerms = 70;  // more than travel as a kernel's arguments
  for (const NumberType type : {NumberType::kBf16, NumberType::kFp16}) {
    for (const Rounding& rounding : {Rounding{}, Rounding{true, 12345}}) {
      const auto [expected, found] = OnBoth([&](ExchangeMemory& memory) {
        std::vector<std::vector<float>> read;
        std::vector<std::uint16_t> numbers;
        std::vector<Halves> terms;
        for (std::size_t t = 0; t < kTerms; ++t) {
          const Floats wide(memory, RandomFloats(kCount, t));
          const Halves narrow(memory, std::vector<std::uint16_t>(kCount));
          EXPECT_TRUE(memory.Narrow(type, wide.get(), narrow.get(), kCount, rounding, 7 * t));
          terms.emplace_back(memory, narrow.Read(kCount));
        }
        // By pieces, of the first few and of all, from places that are alike and that are not.
        for (const std::size_t count : {std::size_t{3}, kTerms}) {
          for (const std::size_t askew : {0u, 3u}) {
            const Halves sum(memory, std::vector<std::uint16_t>(kCount));
            const Floats squares(memory, std::vector<float>(2 * Grains(kCount, 1024) + 200));
            const Floats wide(memory, std::vector<float>(kCount));
            std::vector<std::pair<std::size_t, std::size_t>> pieces;
            for (std::size_t at = 1; at + 3000 < kCount; at += 2047) pieces.emplace_back(at, 2000);
            for (const auto& [first, n] : pieces) {
              std::vector<NarrowInput> inputs;
              for (std::size_t t = 0; t < count; ++t) {
                inputs.push_back({terms[t].get() + first + askew, t % 2 == 0 ? 1.0f : 0.3f});
              }
              memory.WeightedSum(type, inputs, sum.get() + first, n, rounding, first);
            }
            auto* out = reinterpret_cast<double*>(squares.get());
            for (const auto& [first, n] : pieces) {
              memory.SumOfSquaresByGrain(type, sum.get() + first, n, 1024, out);
              out += Grains(n, 1024);
            }
            for (const auto& [first, n] : pieces) {
              memory.Widen(type, sum.get() + first, wide.get() + first, n);
            }
            EXPECT_TRUE(memory.Finish());
            read.push_back(squares.Read());
            read.push_back(wide.Read());
            const auto bits = sum.Read(kCount);
            numbers.insert(numbers.end(), bits.begin(), bits.end());
          }
        }
        return std::pair(read, numbers);
      });
      EXPECT_EQ(found.second, expected.second);
      for (std::size_t i = 0; i < expected.first.size(); ++i) {
        EXPECT_TRUE(SameBits(found.first[i], expected.first[i])) << i;
      }
    }
  }
}

TEST_F(GpuMemory, TellsOfNumbersThatDoNotFit) {
  std::vector<float> values(1000, 1.0f);
  const Halves narrow(*device_, std::vector<std::uint16_t>(1000));
  const Halves sum(*device_, std::vector<std::uint16_t>(1000));
  const auto fits = [&] {
    const Floats wide(*device_, values);
    return device_->Narrow(NumberType::kFp16, wide.get(), narrow.get(), values.size(), {}, 0);
  };
  EXPECT_TRUE(fits());
  values[777] = 60000;
  EXPECT_TRUE(fits());
  const std::vector<NarrowInput> twice = {{narrow.get(), 1.0f}, {narrow.get(), 1.0f}};
  device_->WeightedSum(NumberType::kFp16, twice, sum.get(), values.size(), {}, 0);
  EXPECT_FALSE(device_->Finish());
  EXPECT_TRUE(device_->Finish()) << "told once";
  EXPECT_EQ(sum.Read(1000)[777], 0x7bff) << "the largest number";
  values[777] = 70000;
  EXPECT_FALSE(fits());
  values[777] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(fits());
}

TEST_F(GpuMemory, PiecesGoThroughPinnedMemoryBothWays) {
  constexpr std::size_t kPieces = 32;
  constexpr std::size_t kFloats = 1u << 18;
  constexpr std::size_t kBytes = kFloats * sizeof(float);
  const std::vector<float> values = RandomFloats(kPieces * kFloats, 3);
  const Floats from(*device_, values);
  const Floats to(*device_, std::vector<float>(kPieces * kFloats, -1));
  transport::DeviceCopies& copies = *device_->copies();
  auto pinned = copies.AllocatePinned(kPieces * kBytes);
  ASSERT_TRUE(pinned.ok());
  std::atomic<std::size_t> copied{0};
  const auto count = [&copied](bool ok) {
    copied += ok ? 1 : 1000;
    copied.notify_all();
  };
  const auto wait_for = [&copied](std::size_t wanted) {
    for (std::size_t now = copied; now < wanted; now = copied) copied.wait(now);
  };
  const auto* source = reinterpret_cast<const std::byte*>(from.get());
  auto* destination = reinterpret_cast<std::byte*>(to.get());
  for (std::size_t i = 0; i < kPieces; ++i) {
    copies.ToPinned(*pinned + i * kBytes, source + i * kBytes, kBytes, count);
  }
  wait_for(kPieces);
  for (std::size_t i = 0; i < kPieces; ++i) {
    copies.FromPinned(destination + i * kBytes, *pinned + i * kBytes, kBytes, count);
  }
  wait_for(2 * kPieces);
  EXPECT_EQ(copied, 2 * kPieces);
  EXPECT_TRUE(SameBits(to.Read(), values));
  copies.FreePinned(*pinned, kPieces * kBytes);
}

TEST_F(GpuMemory, TellsOfSumsThatAreNotFiniteOnce) {
  constexpr std::size_t kCount = 100001;
  std::vector<float> values = RandomFloats(kCount, 1);
  const auto sum_is_finite = [&] {
    const Floats from(*device_, values);
    const Floats to(*device_, std::vector<float>(kCount, 0));
    for (const auto& [first, count] : {std::pair{std::size_t{0}, std::size_t{1000}},
                                       std::pair{std::size_t{1000}, kCount - 1000}}) {
      const Input input{from.get() + first, 2};
      device_->WeightedSum({&input, 1}, to.get() + first, count, /*large=*/false);
    }
    const bool finite = device_->Finish();
    EXPECT_TRUE(device_->Finish());
    EXPECT_EQ(device_->AllFinite(from.get(), kCount), finite);
    return finite;
  };
  EXPECT_TRUE(sum_is_finite());
  for (const std::size_t at : {std::size_t{0}, std::size_t{70000}, kCount - 1}) {
    const float before = std::exchange(values[at], std::numeric_limits<float>::quiet_NaN());
    EXPECT_FALSE(sum_is_finite()) << at;
    values[at] = before;
  }
  EXPECT_TRUE(sum_is_finite());
}

// Steps of another kind, or on sums that a step before has made, are asked for in order.
TEST_F(GpuMemory, OperationsOfAllKindsTakeEffectInOrder) {
  constexpr std::size_t kCount = 50000;
  const auto rule = *MakeOptimizer(Rule("sgd", 0, false));
  const auto other = *MakeOptimizer(Rule("sgd", 0.9, true));
  const auto [expected, found] = OnBoth([&](ExchangeMemory& memory) {
    const Floats parameters(memory, RandomFloats(kCount, 1));
    const Floats velocity(memory, RandomFloats(kCount, 2));
    const Floats sum(memory, RandomFloats(kCount, 3));
    const Floats squares(memory, std::vector<float>(2 * Grains(kCount, 1024), 0));
    const auto apply = [&](const Optimizer& optimizer, std::vector<float*> state) {
      optimizer.ApplyBy(
          memory.update_loops(),
          {.scale = 1, .clip_factor = 1, .learning_rate = 0.1f, .fraction = 1, .steps = 1},
          {.first = 0,
           .count = kCount,
           .parameters = parameters.get(),
           .state = state,
           .gradient_sum = sum.get()});
    };
    for (int turn = 0; turn < 3; ++turn) {
      const Input input{parameters.get(), 0.5f};
      memory.WeightedSum({&input, 1}, sum.get(), kCount, /*large=*/true);
      memory.SumOfSquaresByGrain(sum.get(), kCount, 1024, reinterpret_cast<double*>(squares.get()));
      apply(*rule, {});
      memory.Copy(sum.get(), parameters.get(), kCount, /*large=*/true);
      apply(*other, {velocity.get()});
      memory.Copy(velocity.get(), squares.get(), 2 * Grains(kCount, 1024), /*large=*/false);
    }
    memory.Finish();
    return std::vector{parameters.Read(), velocity.Read(), sum.Read(), squares.Read()};
  });
  for (std::size_t t = 0; t < expected.size(); ++t) {
    EXPECT_TRUE(SameBits(found[t], expected[t])) << t;
  }
}

// The session keeps the memory when the trainer's device is gone.
TEST_F(GpuMemory, OutlivesTheCompute) {
  gpu_.reset();
  EXPECT_TRUE(SameBits(Floats(*device_, {1, 2}).Read(), {1, 2}));
}

// What a program has asked of a stream of its own is done before the exchange is told.
TEST_F(GpuMemory, FollowsAProgramsStream) {
  ProgramStreams& streams = *device_->streams();
  std::atomic<int> called = 0;
  for (int i = 0; i < 100; ++i) {
    const auto here = streams.Visit();
    streams.After(nullptr, [&, i] {
      EXPECT_EQ(called, i);
      ++called;
    });
  }
  streams.Await(nullptr);
  EXPECT_EQ(called, 100);
  streams.Settle();
}

}  // namespace
}  // namespace lockstep::worker
