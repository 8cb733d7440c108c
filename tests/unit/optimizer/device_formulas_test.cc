// The formulae that kernels are made of have the bits of the CPU's loops, element by element.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/random.h"
#include "worker/compute/cuda/update_formulas.h"

namespace lockstep::worker {
namespace {

constexpr float kFactor = 0.75f / 64;
constexpr rules::MomentumFactors kMomentum{0.9f, 0.97f, 0.3f};

float Root(float x) { return std::sqrt(x); }

// A gradient sum, a parameter and two tensors of state.
struct Element {
  float sum, p, a, b;
};
bool SameBits(const Element& x, const Element& y) {
  using Words = std::array<std::uint32_t, 4>;
  return std::bit_cast<Words>(x) == std::bit_cast<Words>(y);
}

// Random elements of all sizes, and rare ones.
template <class Check>
void ForElements(Check check) {
  RandomStream random(7);
  const auto any = [&] {
    return std::ldexp(random.NextUniform() - 0.5f,
                      static_cast<int>(random.NextUniform() * 60) - 40);
  };
  for (int i = 0; i < 20000; ++i) check(Element{any(), any(), std::abs(any()), std::abs(any())});
  for (const float rare : {0.0f, -0.0f, 1e-40f, -1e-44f, 1e18f, 1e-20f}) {
    check(Element{rare, 1, 0, 0});
    check(Element{1, rare, std::abs(rare), 0});
    check(Element{rare, rare, 0, std::abs(rare)});
  }
}

rules::Slice SliceOf(Element& e) { return {1, &e.p, &e.sum, kFactor}; }

TEST(DeviceFormulas, SgdHasTheBitsOfTheCpu) {
  ForElements([](const Element& start) {
    Element host = start;
    Element device = start;
    const rules::SgdFactors factors{0.01f, 0.05f};
    rules::HostLoops().SgdPlain(SliceOf(host), factors);
    cuda::SgdPlainStep(device.sum, kFactor, factors, device.p);
    ASSERT_TRUE(SameBits(host, device)) << start.sum << " " << start.p;
    for (const bool nesterov : {false, true}) {
      rules::HostLoops().SgdMomentum(SliceOf(host), factors, kMomentum, nesterov, &host.a);
      cuda::SgdMomentumStep(device.sum, kFactor, factors, kMomentum, nesterov, device.p, device.a);
      ASSERT_TRUE(SameBits(host, device)) << start.sum << " " << start.p << " " << start.a;
    }
  });
}

TEST(DeviceFormulas, RmsPropHasTheBitsOfTheCpu) {
  const rules::RmsPropFactors factors{0.01f, 0.05f, 0.9f, 0.1f, 1e-3f};
  ForElements([&](const Element& start) {
    Element host = start;
    Element device = start;
    rules::HostLoops().RmsPropPlain(SliceOf(host), factors, &host.a);
    cuda::RmsPropPlainStep(device.sum, kFactor, factors, device.p, device.a, Root);
    ASSERT_TRUE(SameBits(host, device)) << start.sum << " " << start.p << " " << start.a;
    rules::HostLoops().RmsPropMomentum(SliceOf(host), factors, kMomentum, &host.a, &host.b);
    cuda::RmsPropMomentumStep(device.sum, kFactor, factors, kMomentum, device.p, device.a, device.b,
                              Root);
    ASSERT_TRUE(SameBits(host, device)) << start.sum << " " << start.p << " " << start.a;
  });
}

TEST(DeviceFormulas, AdamWHasTheBitsOfTheCpu) {
  const rules::AdamFactors factors{0.01f, 0.05f, 0.9f, 0.1f, 0.999f, 0.001f, 10.0f, 1000.0f, 1e-8f};
  ForElements([&](const Element& start) {
    Element host = start;
    Element device = start;
    rules::HostLoops().AdamWStep(SliceOf(host), factors, &host.a, &host.b);
    cuda::AdamWElementStep(device.sum, kFactor, factors, device.p, device.a, device.b, Root);
    ASSERT_TRUE(SameBits(host, device)) << start.sum << " " << start.p << " " << start.a;
  });
}

}  // namespace
}  // namespace lockstep::worker
