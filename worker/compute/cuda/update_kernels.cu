#include "worker/compute/cuda/update_kernels.h"

#include <variant>

#include "worker/compute/cuda/launch.cuh"
#include "worker/compute/cuda/pieces.h"
#include "worker/compute/cuda/update_formulas.h"

namespace lockstep::worker::cuda {
namespace {

// It is correctly rounded as long as fast mathematics are off.
struct Root {
  __host__ __device__ float operator()(float x) const { return sqrtf(x); }
};

// The operation on an element, and on its state `at` elements behind the first slice's beginning.
// MoveBack: the slice of this state begins so many elements behind the first one.
struct SgdPlainRule {
  rules::SgdFactors factors;
  bool operator==(const SgdPlainRule&) const = default;
  void MoveBack(std::ptrdiff_t /*by*/) {}
  __device__ void operator()(float sum, float factor, float& parameter,
                             std::ptrdiff_t /*at*/) const {
    SgdPlainStep(sum, factor, factors, parameter);
  }
};

struct SgdMomentumRule {
  rules::SgdFactors factors;
  rules::MomentumFactors momentum;
  bool nesterov;
  float* velocity;
  bool operator==(const SgdMomentumRule&) const = default;
  void MoveBack(std::ptrdiff_t by) { velocity -= by; }
  __device__ void operator()(float sum, float factor, float& parameter, std::ptrdiff_t at) const {
    SgdMomentumStep(sum, factor, factors, momentum, nesterov, parameter, velocity[at]);
  }
};

struct RmsPropPlainRule {
  rules::RmsPropFactors factors;
  float* square;
  bool operator==(const RmsPropPlainRule&) const = default;
  void MoveBack(std::ptrdiff_t by) { square -= by; }
  __device__ void operator()(float sum, float factor, float& parameter, std::ptrdiff_t at) const {
    RmsPropPlainStep(sum, factor, factors, parameter, square[at], Root());
  }
};

struct RmsPropMomentumRule {
  rules::RmsPropFactors factors;
  rules::MomentumFactors momentum;
  float* square;
  float* velocity;
  bool operator==(const RmsPropMomentumRule&) const = default;
  void MoveBack(std::ptrdiff_t by) {
    square -= by;
    velocity -= by;
  }
  __device__ void operator()(float sum, float factor, float& parameter, std::ptrdiff_t at) const {
    RmsPropMomentumStep(sum, factor, factors, momentum, parameter, square[at], velocity[at],
                        Root());
  }
};

struct AdamWRule {
  rules::AdamFactors factors;
  float* moment;
  float* square;
  bool operator==(const AdamWRule&) const = default;
  void MoveBack(std::ptrdiff_t by) {
    moment -= by;
    square -= by;
  }
  __device__ void operator()(float sum, float factor, float& parameter, std::ptrdiff_t at) const {
    AdamWElementStep(sum, factor, factors, parameter, moment[at], square[at], Root());
  }
};

using Rule =
    std::variant<SgdPlainRule, SgdMomentumRule, RmsPropPlainRule, RmsPropMomentumRule, AdamWRule>;

struct Piece {
  std::ptrdiff_t first;  // from the first slice on
  std::size_t count;
  const float* sum;
};

// There is a row of blocks for each slice.
template <class OneRule>
__global__ void UpdateKernel(const __grid_constant__ Pieces<Piece> pieces, float* parameters,
                             float factor, OneRule rule) {
  const std::ptrdiff_t first = pieces.of[blockIdx.y].first;
  const auto count = static_cast<std::ptrdiff_t>(pieces.of[blockIdx.y].count);
  const float* const sum = pieces.of[blockIdx.y].sum;
  for (auto i = static_cast<std::ptrdiff_t>(FirstElement()); i < count;
       i += static_cast<std::ptrdiff_t>(ElementStride())) {
    rule(sum[i], factor, parameters[first + i], first + i);
  }
}

}  // namespace

class UpdateLoops::Pending {
 public:
  explicit Pending(cudaStream_t stream) : stream_(stream) {}

  void Add(const rules::Slice& slice, Rule rule) {
    if (slice.count == 0) return;
    const std::ptrdiff_t first = pieces_.count == 0 ? 0 : Distance(parameters_, slice.parameters);
    std::visit([&](auto& one) { one.MoveBack(first); }, rule);
    if (pieces_.count > 0 && (pieces_.full() || slice.factor != factor_ || rule != rule_)) {
      Ask();
      std::visit([&](auto& one) { one.MoveBack(-first); }, rule);
    }
    if (pieces_.count == 0) {
      parameters_ = slice.parameters;
      factor_ = slice.factor;
      rule_ = rule;
    }
    pieces_.Add({Distance(parameters_, slice.parameters), slice.count, slice.gradient_sum});
  }

  void Ask() {
    if (pieces_.count == 0) return;
    const dim3 grid(GridFor(pieces_.Longest()), pieces_.count);
    std::visit(
        [&](const auto& rule) {
          UpdateKernel<<<grid, kThreads, 0, stream_>>>(pieces_, parameters_, factor_, rule);
        },
        rule_);
    pieces_.count = 0;
    CheckLaunch("an update");
  }

 private:
  const cudaStream_t stream_;
  float* parameters_ = nullptr;  // of the first slice
  float factor_ = 1;
  Rule rule_{};
  Pieces<Piece> pieces_;
};

UpdateLoops::UpdateLoops(cudaStream_t stream) : pending_(std::make_unique<Pending>(stream)) {}
UpdateLoops::~UpdateLoops() = default;

void UpdateLoops::SgdPlain(const rules::Slice& slice, const rules::SgdFactors& factors) const {
  pending_->Add(slice, SgdPlainRule{factors});
}

void UpdateLoops::SgdMomentum(const rules::Slice& slice, const rules::SgdFactors& factors,
                              const rules::MomentumFactors& momentum, bool nesterov,
                              float* velocity) const {
  pending_->Add(slice, SgdMomentumRule{factors, momentum, nesterov, velocity});
}

void UpdateLoops::RmsPropPlain(const rules::Slice& slice, const rules::RmsPropFactors& factors,
                               float* square) const {
  pending_->Add(slice, RmsPropPlainRule{factors, square});
}

void UpdateLoops::RmsPropMomentum(const rules::Slice& slice, const rules::RmsPropFactors& factors,
                                  const rules::MomentumFactors& momentum, float* square,
                                  float* velocity) const {
  pending_->Add(slice, RmsPropMomentumRule{factors, momentum, square, velocity});
}

void UpdateLoops::AdamWStep(const rules::Slice& slice, const rules::AdamFactors& factors,
                            float* moment, float* square) const {
  pending_->Add(slice, AdamWRule{factors, moment, square});
}

void UpdateLoops::Ask() const { pending_->Ask(); }

}  // namespace lockstep::worker::cuda
