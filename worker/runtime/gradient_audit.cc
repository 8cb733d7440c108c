#include "worker/runtime/gradient_audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <vector>

#include "base/digest.h"
#include "base/processors.h"
#include "base/random.h"

namespace lockstep::worker {
namespace {

constexpr std::uint64_t kCounters = msg::kAuditCounters;
constexpr std::uint64_t kAuditPiece = 1u << 20;  // floats; a multiple of kCounters
static_assert(kAuditPiece % kCounters == 0 && kCounters == 64,
              "a word has a sign for each counter");
constexpr std::uint64_t kSigns = 0x6175646974ull;  // all workers draw the same ones

class Sketch {
 public:
  // The next values; all calls but the last one have a multiple of kCounters.
  void Add(std::span<const float> values) {
    for (std::size_t at = 0; at < values.size(); at += kCounters) {
      const std::span<const float> some =
          values.subspan(at, std::min<std::size_t>(kCounters, values.size() - at));
      const std::uint64_t signs = signs_.NextWord();
      for (std::size_t i = 0; i < some.size(); ++i) {
        const double value = some[i];
        counters_[i] += (signs >> i & 1) != 0 ? value : -value;
        squares_[i] += value * value;
      }
    }
  }
  std::vector<double> counters() const { return {counters_.begin(), counters_.end()}; }
  double squares() const {
    double sum = 0;
    for (const double some : squares_) sum += some;
    return sum;
  }

 private:
  RandomStream signs_{kSigns};
  std::array<double, kCounters> counters_{};
  std::array<double, kCounters> squares_{};
};

}  // namespace

event::AuditedGradient AuditGradient(ExchangeMemory& memory, const float* gradient,
                                     std::uint64_t count) {
  DigestStream digest;
  Sketch sketch;
  std::vector<float> copied;
  for (std::uint64_t at = 0; at < count; at += kAuditPiece) {
    const std::uint64_t n = std::min(kAuditPiece, count - at);
    std::span<const float> values(gradient + at, n);
    if (!memory.on_host()) {
      copied.resize(n);
      memory.ToHost(copied.data(), gradient + at, n * sizeof(float));
      values = copied;
    }
    digest.Update(std::as_bytes(values));
    sketch.Add(values);
  }
  return {.bits = digest.Digest(),
          .squares = sketch.squares(),
          .sketch = sketch.counters(),
          .arithmetic = {}};
}

std::string ArithmeticOf(const std::string& device) {
  return fmt::format("{}, {}, {} processors", device, ProcessorName(), UsableProcessors());
}

}  // namespace lockstep::worker
