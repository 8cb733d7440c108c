// How fast the reduction is, beside what it is measured against: a memcpy, which moves the fewest
// bytes per result, and the pairwise way, one input at a time into the sum. "bytes_per_second"
// counts what has to cross memory: every input and the output once. Run it with
// --benchmark_enable_random_interleaving=true --benchmark_repetitions=9 on a machine that others
// use too, and compare medians.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/digest.h"
#include "worker/memory/narrow.h"
#include "worker/memory/reduce.h"
#include "worker/memory/reduce_kernels.h"

namespace lockstep::worker {
namespace {

constexpr std::size_t kMaxInputs = 8;
constexpr std::size_t kMaxFloats = 16u << 20;

// Memory with its pages in place, the same for all, so that no benchmark pays for another's faults.
float* Memory(std::size_t which) {
  static const std::vector<float*> memory = [] {
    std::vector<float*> made;
    for (std::size_t s = 0; s <= kMaxInputs; ++s) {
      void* base = mmap(nullptr, kMaxFloats * sizeof(float), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
      LOCKSTEP_CHECK(base != MAP_FAILED);
      made.push_back(static_cast<float*>(base));
      for (std::size_t i = 0; i < kMaxFloats; ++i)
        made.back()[i] = static_cast<float>(i % 1000 + s);
    }
    return made;
  }();
  return memory[which];
}

float* Out() { return Memory(kMaxInputs); }

std::vector<Input> Inputs(std::size_t count) {
  std::vector<Input> inputs;
  for (std::size_t s = 0; s < count; ++s) inputs.push_back({Memory(s), 1.0f});
  return inputs;
}

void Finish(benchmark::State& state, std::size_t bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * state.iterations());
}

void Memcpy(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    std::memcpy(Out(), Memory(0), bytes);
    benchmark::ClobberMemory();
  }
  Finish(state, 2 * bytes);
}

void Fused(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const auto inputs = Inputs(static_cast<std::size_t>(state.range(1)));
  for (auto _ : state) {
    WeightedSum(inputs, Out(), bytes / sizeof(float));
    benchmark::ClobberMemory();
  }
  Finish(state, (inputs.size() + 1) * bytes);
}

void Variant(benchmark::State& state, const ReduceKernels& kernels, bool streaming) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const auto inputs = Inputs(static_cast<std::size_t>(state.range(1)));
  for (auto _ : state) {
    kernels.weighted_sum(inputs, Out(), bytes / sizeof(float), streaming);
    benchmark::ClobberMemory();
  }
  Finish(state, (inputs.size() + 1) * bytes);
}

#if defined(__x86_64__) && !defined(LOCKSTEP_SANITIZED)
[[gnu::target_clones("avx512f", "avx2", "default")]]
#endif
void AddTo(float* sum, const float* x, float w, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) sum[i] += w * x[i];
}

void Pairwise(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const auto inputs = Inputs(static_cast<std::size_t>(state.range(1)));
  for (auto _ : state) {
    std::memcpy(Out(), inputs[0].data, bytes);
    for (std::size_t s = 1; s < inputs.size(); ++s) {
      AddTo(Out(), inputs[s].data, inputs[s].weight, bytes / sizeof(float));
    }
    benchmark::ClobberMemory();
  }
  Finish(state, (inputs.size() + 1) * bytes);
}

void Squares(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  constexpr std::size_t kGrain = 1024;
  std::vector<double> out(Grains(bytes / sizeof(float), kGrain));
  for (auto _ : state) {
    SumOfSquaresByGrain(Memory(0), bytes / sizeof(float), kGrain, out.data());
    benchmark::DoNotOptimize(out.data());
  }
  Finish(state, bytes);
}

void Finite(benchmark::State& state, const ReduceKernels& kernels) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    benchmark::DoNotOptimize(kernels.all_finite(Memory(0), bytes / sizeof(float)));
  }
  Finish(state, bytes);
}

void Digest(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(DigestOf({Memory(0), bytes / sizeof(float)}));
  Finish(state, bytes);
}

// Of FP32 numbers to 16 bits: `bytes` are those of FP32.
void NarrowNumbers(benchmark::State& state, NumberType type, const Rounding& rounding) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  auto* to = reinterpret_cast<std::uint16_t*>(Out());
  for (auto _ : state) {
    Narrow(type, Memory(0), to, bytes / sizeof(float), rounding);
    benchmark::ClobberMemory();
  }
  Finish(state, bytes + bytes / 2);
}

// The sum of numbers of 16 bits: as many as FP32 numbers would be in `bytes`.
void NarrowSum(benchmark::State& state, NumberType type, const Rounding& rounding) {
  const std::size_t numbers = static_cast<std::size_t>(state.range(0)) / sizeof(float);
  std::vector<std::vector<std::uint16_t>> memory(static_cast<std::size_t>(state.range(1)));
  std::vector<NarrowInput> inputs;
  for (std::vector<std::uint16_t>& input : memory) {
    input.resize(numbers);
    Narrow(type, Memory(inputs.size()), input.data(), numbers);
    inputs.push_back({input.data(), 1.0f});
  }
  auto* out = reinterpret_cast<std::uint16_t*>(Out());
  for (auto _ : state) {
    WeightedSum(type, inputs, out, numbers, rounding);
    benchmark::ClobberMemory();
  }
  Finish(state, (inputs.size() + 1) * numbers * sizeof(std::uint16_t));
}

void RegisterAll() {
  constexpr std::int64_t kSmall = 256 << 10, kMiddle = 1 << 20, kLarge = 64 << 20;
  for (const std::int64_t bytes : {kSmall, kMiddle, kLarge}) {
    benchmark::RegisterBenchmark("memcpy", Memcpy)->Arg(bytes);
    for (const std::int64_t count : {2, 4, 8}) {
      benchmark::RegisterBenchmark("fused", Fused)->Args({bytes, count});
      benchmark::RegisterBenchmark("pairwise", Pairwise)->Args({bytes, count});
    }
    for (const ReduceKernels& kernels : AvailableReduceKernels()) {
      const std::string finite = std::string(kernels.name) + "/all_finite";
      benchmark::RegisterBenchmark(finite.c_str(), Finite, kernels)->Arg(bytes);
      for (const bool streaming : {false, true}) {
        const std::string name = std::string(kernels.name) + (streaming ? "/streaming" : "/cached");
        benchmark::RegisterBenchmark(name.c_str(), Variant, kernels, streaming)->Args({bytes, 4});
      }
    }
    for (const auto& [type, of] :
         {std::pair(NumberType::kBf16, "bf16"), {NumberType::kFp16, "fp16"}}) {
      for (const bool stochastic : {false, true}) {
        const Rounding rounding = stochastic ? RoundingOfSums(1, RoundId(0)) : Rounding{};
        const std::string name = std::string(of) + (stochastic ? "/stochastic" : "/nearest");
        benchmark::RegisterBenchmark((name + "/narrow").c_str(), NarrowNumbers, type, rounding)
            ->Arg(bytes);
        benchmark::RegisterBenchmark((name + "/sum").c_str(), NarrowSum, type, rounding)
            ->Args({bytes, 2});
      }
    }
    benchmark::RegisterBenchmark("sum_of_squares", Squares)->Arg(bytes);
    benchmark::RegisterBenchmark("digest", Digest)->Arg(bytes);
  }
}

}  // namespace
}  // namespace lockstep::worker

int main(int argc, char** argv) {
  lockstep::worker::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
