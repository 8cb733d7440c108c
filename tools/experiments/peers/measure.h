// The measurement of bench-peers for a library: from the last process that has its gradient ready
// to the last one that has the parameters updated. Each process makes the plainest step (p -= rate
// * mean). `lockstep-bench exchange` measures the same for Lockstep.
//
// tools/experiments/bench-peers compiles it for this machine, with the library that is present.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace peers {

class Library {
 public:
  virtual ~Library() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Sums over all processes, in place.
  virtual void AllReduce(float* data, std::size_t n) = 0;
  virtual void Barrier() = 0;
  // The two numbers of every process, by rank.
  virtual std::vector<std::int64_t> Gather(std::int64_t first, std::int64_t second) = 0;
};

inline std::int64_t Now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

[[noreturn]] inline void Fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}

// They are mapped once and touched, on huge pages where the kernel has them.
inline float* Floats(std::size_t n) {
  const std::size_t bytes = std::max<std::size_t>(n * sizeof(float), 4096);
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) Fail("no memory for " + std::to_string(bytes) + " bytes");
  ::madvise(at, bytes, MADV_HUGEPAGE);
  std::memset(at, 0, bytes);
  return static_cast<float*>(at);
}

inline void Step(float* parameters, const float* sum, std::size_t n, float rate) {
  for (std::size_t i = 0; i < n; ++i) parameters[i] -= rate * sum[i];
}

// `work`: "BYTES:ROUNDS" each. The first three rounds do not count, and the very first one proves
// that the result is the sum.
inline void Measure(Library& library, const std::vector<std::string>& work) {
  constexpr int kWarmUp = 3;
  for (const std::string& one : work) {
    char* rest = nullptr;
    const std::size_t bytes = std::strtoull(one.c_str(), &rest, 10);
    const long rounds = *rest == ':' ? std::strtol(rest + 1, nullptr, 10) : 0;
    if (bytes < sizeof(float) || rounds < 1) Fail("expected BYTES:ROUNDS, not '" + one + "'");
    const std::size_t n = bytes / sizeof(float);
    float* gradient = Floats(n);
    float* parameters = Floats(n);
    std::fill(gradient, gradient + n, static_cast<float>(library.rank() + 1));
    library.AllReduce(gradient, n);
    const float sum = static_cast<float>(library.size() * (library.size() + 1) / 2);
    if (gradient[0] != sum || gradient[n / 2] != sum || gradient[n - 1] != sum) {
      Fail("the all-reduce gave " + std::to_string(gradient[n - 1]) + " for " +
           std::to_string(sum));
    }
    std::fill(gradient, gradient + n, 0.0f);
    std::vector<double> times;
    for (long round = 0; round < rounds + kWarmUp; ++round) {
      library.Barrier();
      const std::int64_t ready = Now();
      library.AllReduce(gradient, n);
      Step(parameters, gradient, n, 0.1f / static_cast<float>(library.size()));
      const std::vector<std::int64_t> all = library.Gather(ready, Now());
      std::int64_t last_ready = ready;
      std::int64_t last_done = ready;
      for (std::size_t i = 0; i + 1 < all.size(); i += 2) {
        last_ready = std::max(last_ready, all[i]);
        last_done = std::max(last_done, all[i + 1]);
      }
      if (round >= kWarmUp) times.push_back(static_cast<double>(last_done - last_ready) / 1e3);
    }
    if (library.rank() == 0) {
      std::printf("{\"bytes\": %zu, \"times_us\": [", bytes);
      for (std::size_t i = 0; i < times.size(); ++i) {
        std::printf("%s%.1f", i == 0 ? "" : ", ", times[i]);
      }
      std::printf("]}\n");
      std::fflush(stdout);
    }
    ::munmap(gradient, std::max<std::size_t>(bytes, 4096));
    ::munmap(parameters, std::max<std::size_t>(bytes, 4096));
  }
}

}  // namespace peers
