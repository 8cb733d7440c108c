#include "worker/runtime/contribution.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::worker {
namespace {

constexpr std::uint64_t kFloats = 4096;  // of a bucket
constexpr std::uint64_t kGradient = 3 * kFloats + 100;

struct Exchanged {
  std::string dtype = "fp32";
  std::string rounding = "nearest";
  std::string compression = "none";
  std::string algorithm = "direct";
};

// A worker's contribution with the memory that it is made in.
struct Made {
  explicit Made(const Exchanged& exchanged, std::uint64_t seed = 7) {
    config.job.seed = seed;
    config.exchange.dtype = exchanged.dtype;
    config.exchange.rounding = exchanged.rounding;
    config.exchange.compression = exchanged.compression;
    config.exchange.algorithm = exchanged.algorithm;
    config.exchange.topk_fraction = 0.01;
    layout.emplace(std::vector<FloatRange>{{0, kGradient}}, kFloats * sizeof(float),
                   config.exchange.number_bytes(), Layout::Copies::kBuckets,
                   Compression{.kept = config.exchange.kept(),
                               .rank = config.exchange.rank(),
                               .matrices = {{0, 100, 90}, {9010, 30, 100}}});
    buffers = *WorkerBuffers::Make(*layout, 1, /*arena=*/false, nullptr,
                                   NumberTypeOf(config.exchange.dtype));
    contribution.emplace(config, WorkerId{1}, *layout, *buffers);
  }

  static action::StartWork Work(std::uint32_t work) {
    action::StartWork start;
    start.work = work;
    start.round = RoundId{work};
    for (std::uint32_t i = 0; i < kMaxParts; ++i) {
      start.parts[i] = {BufferKind::kContribution, i, {}};
    }
    return start;
  }

  // A run that is its part's first and last one, of which so many buckets go early.
  bool Make(std::uint32_t work, PartIndex part, std::uint32_t early, float odd = 0.25f) {
    EXPECT_TRUE(contribution->BeginRun(Work(work), part));
    for (std::uint64_t i = 0; i < kGradient; ++i) {
      contribution->gradient()[i] = std::sin(static_cast<float>(i * (work + 1)));
    }
    contribution->gradient()[kFloats + 3] = odd;
    for (std::uint32_t buckets = 1; buckets <= early; ++buckets) contribution->SendEarly(buckets);
    return contribution->Finish();
  }
  // What is exchanged of a part.
  std::vector<std::byte> Bytes(PartIndex part) {
    const BufferId buffer{BufferKind::kContribution, part.value, {}};
    const std::byte* data = buffers->Data(buffer);
    return {data, data + buffers->Bytes(buffer)};
  }

  JobConfig config;
  std::optional<Layout> layout;
  std::unique_ptr<WorkerBuffers> buffers;
  std::optional<Contribution> contribution;
};

const std::vector<Exchanged> kExchanges = {{},
                                           {.dtype = "bf16"},
                                           {.dtype = "fp16"},
                                           {.dtype = "bf16", .rounding = "stochastic"},
                                           {.compression = "topk"},
                                           {.dtype = "bf16", .compression = "topk"},
                                           {.compression = "powersgd"},
                                           {.dtype = "fp16", .compression = "powersgd"}};

TEST(Contribution, WhatGoesEarlyIsWhatWouldGoInTheEnd) {
  for (const Exchanged& exchanged : kExchanges) {
    SCOPED_TRACE(exchanged.dtype + ", " + exchanged.rounding + ", " + exchanged.compression);
    Made early(exchanged);
    Made late(exchanged);
    // The second part, and the next work: what is kept of one part goes into the next.
    for (const std::uint32_t work : {1u, 2u}) {
      for (const PartIndex part : {PartIndex{0}, PartIndex{1}}) {
        EXPECT_TRUE(early.Make(work, part, 2));
        EXPECT_TRUE(late.Make(work, part, 0));
        EXPECT_EQ(early.Bytes(part), late.Bytes(part)) << "part " << part.value << " of " << work;
      }
    }
  }
}

TEST(Contribution, GoesOnWithTheRunsOfItsPart) {
  for (const Exchanged& exchanged : kExchanges) {
    Made made(exchanged);
    EXPECT_TRUE(made.contribution->BeginRun(Made::Work(4), PartIndex{0}));
    float* gradient = made.contribution->gradient();
    gradient[5] = 3;
    EXPECT_FALSE(made.contribution->BeginRun(Made::Work(4), PartIndex{0}));
    EXPECT_EQ(made.contribution->gradient(), gradient);
    EXPECT_EQ(gradient[5], 3);
    EXPECT_TRUE(made.contribution->BeginRun(Made::Work(4), PartIndex{1}));
    EXPECT_TRUE(made.contribution->BeginRun(Made::Work(5), PartIndex{0}));
  }
}

TEST(Contribution, SaysWhatAreNoNumbersWhereOwnersWouldNotSeeIt) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (Exchanged exchanged : kExchanges) {
    SCOPED_TRACE(exchanged.dtype + ", " + exchanged.compression);
    const bool itself = exchanged.dtype == "fp32" && exchanged.compression == "none";
    EXPECT_EQ(Made(exchanged).Make(1, PartIndex{0}, 0, kNan), itself);
    EXPECT_EQ(Made(exchanged).Make(1, PartIndex{0}, 3, kNan), itself);
    if (!itself) continue;
    exchanged.algorithm = "ring";
    EXPECT_FALSE(Made(exchanged).Make(1, PartIndex{0}, 0, kNan));
    EXPECT_TRUE(Made(exchanged).Make(1, PartIndex{0}, 0));
  }
}

// Not those of the work before, nor what the state becomes while it is computed.
TEST(Contribution, FactorsAreOfTheStateInWhichItsWorkBegins) {
  const Exchanged exchanged{.compression = "powersgd"};
  const auto change = [](Made& made, float by) {
    for (std::uint64_t i = 0; i < kGradient; ++i) {
      made.buffers->factors()[i] += by * std::cos(static_cast<float>(i));
    }
  };
  Made later(exchanged);
  EXPECT_TRUE(later.Make(1, PartIndex{0}, 0));
  change(later, 1);
  Made anew(exchanged);
  change(anew, 1);
  for (Made* made : {&later, &anew}) {
    EXPECT_TRUE(made->Make(2, PartIndex{0}, 0));
    change(*made, 3);
    EXPECT_TRUE(made->Make(2, PartIndex{1}, 0));
  }
  EXPECT_EQ(later.Bytes(PartIndex{0}), anew.Bytes(PartIndex{0}));
  EXPECT_EQ(later.Bytes(PartIndex{1}), later.Bytes(PartIndex{0})) << "of the same gradient";
}

TEST(Contribution, RandomBitsAreOfTheSeedTheRoundAndThePart) {
  const Exchanged exchanged{.dtype = "bf16", .rounding = "stochastic"};
  const auto bytes = [&](std::uint32_t round, PartIndex part, std::uint64_t seed) {
    Made made(exchanged, seed);
    // The same gradient each time.
    action::StartWork work = Made::Work(1);
    work.round = RoundId{round};
    EXPECT_TRUE(made.contribution->BeginRun(work, part));
    std::fill_n(made.contribution->gradient(), kGradient, 0.3f);
    EXPECT_TRUE(made.contribution->Finish());
    return made.Bytes(part);
  };
  const auto one = bytes(3, PartIndex{0}, 7);
  EXPECT_EQ(one, bytes(3, PartIndex{0}, 7));
  EXPECT_NE(one, bytes(4, PartIndex{0}, 7));
  EXPECT_NE(one, bytes(3, PartIndex{1}, 7));
  EXPECT_NE(one, bytes(3, PartIndex{0}, 8));
}

}  // namespace
}  // namespace lockstep::worker
