#include "worker/core/unit_queue.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "base/random.h"

namespace lockstep::worker {
namespace {

using Kind = UnitQueue::TakeKind;

std::vector<Unit> Units(std::uint32_t first, std::uint32_t count) {
  std::vector<Unit> units;
  for (std::uint32_t i = first; i < first + count; ++i) units.push_back({UnitIndex(i), {i, i + 1}});
  return units;
}

constexpr RunLimit kOneByOne = {.units = 1};

TEST(UnitQueue, WhatIsBehindARunIsOfItsPart) {
  UnitQueue queue(16);
  queue.Reset(5, Units(0, 2), {}, kOneByOne);
  auto take = queue.TakeNext();
  EXPECT_EQ(take.work, 5u);
  EXPECT_FALSE(queue.BeginSeal());  // a unit is behind it
  queue.TakeNext();
  EXPECT_EQ(queue.Append(Units(2, 1)), PartIndex(0)) << "its last run is not done";
  EXPECT_FALSE(queue.BeginSeal());
  take = queue.TakeNext();
  EXPECT_EQ(take.part, PartIndex(0));
  EXPECT_TRUE(queue.BeginSeal());
  EXPECT_EQ(queue.seals_begun(), 1u);
  EXPECT_EQ(queue.TakeNext().kind, Kind::kNone);

  EXPECT_EQ(queue.Append(Units(3, 2)), PartIndex(1));
  EXPECT_EQ(queue.TakeNext().part, PartIndex(1));
  queue.TakeNext();
  EXPECT_TRUE(queue.BeginSeal());
  EXPECT_EQ(queue.Append(Units(5, 1)), std::nullopt);
}

TEST(UnitQueue, WhatWasToBeLastMayBeRevoked) {
  UnitQueue queue(16);
  queue.Reset(1, Units(0, 4), {}, kOneByOne);
  EXPECT_EQ(queue.TakeNext().kind, Kind::kRun);
  EXPECT_FALSE(queue.BeginSeal());
  EXPECT_EQ(queue.RevokeFrom(0), 1u);  // one is begun
  EXPECT_EQ(queue.TakeNext().kind, Kind::kSeal);
  EXPECT_EQ(queue.TakeNext().kind, Kind::kNone);
}

TEST(UnitQueue, AnAuditedUnitThatCountsForNothingIsTakenFirst) {
  UnitQueue queue(16);
  queue.Reset(1, Units(0, 2), {}, {}, Units(9, 1).front());
  EXPECT_FALSE(queue.audit_taken());
  EXPECT_EQ(queue.PeekNext(), Units(0, 2));
  auto take = queue.TakeNext();
  EXPECT_EQ(take.kind, Kind::kAudit);
  EXPECT_EQ(queue.UnitsOf(take), Units(9, 1));
  EXPECT_TRUE(queue.audit_taken());
  EXPECT_EQ(queue.taken(), 0u) << "it is none of the units";
  EXPECT_EQ(queue.RevokeFrom(1), 1u);
  take = queue.TakeNext();
  EXPECT_EQ(take.kind, Kind::kRun);
  EXPECT_EQ(take.count, 1u);
  EXPECT_FALSE(take.audited);
  EXPECT_TRUE(queue.BeginSeal());
  queue.Reset(2, Units(0, 2));
  EXPECT_FALSE(queue.audit_taken());
}

TEST(UnitQueue, NoAuditIsTakenOfVoidWorkAndNoneSealsAPart) {
  UnitQueue queue(16);
  queue.Reset(1, {}, {}, {}, Units(9, 1).front());
  EXPECT_EQ(queue.TakeNext().kind, Kind::kAudit);
  EXPECT_EQ(queue.TakeNext().kind, Kind::kNone);
  queue.Reset(2, {}, {}, {}, Units(9, 1).front());
  queue.MakeVoid();
  EXPECT_EQ(queue.TakeNext().kind, Kind::kNone);
  EXPECT_FALSE(queue.audit_taken());
}

TEST(UnitQueue, AnAuditedFirstUnitIsARunOfItsOwn) {
  UnitQueue queue(16);
  queue.Reset(1, Units(0, 4), {}, {}, std::nullopt, true);
  auto take = queue.TakeNext();
  EXPECT_EQ(take.count, 1u);
  EXPECT_TRUE(take.audited);
  EXPECT_FALSE(queue.BeginSeal());
  take = queue.TakeNext();
  EXPECT_EQ(take.count, 3u);
  EXPECT_FALSE(take.audited);
}

TEST(UnitQueue, NothingIsSealedThatHasNoUnit) {
  UnitQueue queue(16);
  queue.Reset(1, Units(0, 2));
  EXPECT_EQ(queue.RevokeFrom(9), 2u);
  EXPECT_EQ(queue.RevokeFrom(0), 0u);
  EXPECT_EQ(queue.TakeNext().kind, Kind::kNone);
  EXPECT_EQ(queue.Append(Units(0, 1)), PartIndex(0));
}

// The sizes of the runs that are taken until the queue is empty.
std::vector<std::uint32_t> Runs(UnitQueue& queue) {
  std::vector<std::uint32_t> runs;
  for (;;) {
    const auto take = queue.TakeNext();
    if (take.kind != Kind::kRun) return runs;
    runs.push_back(take.count);
  }
}

TEST(UnitQueue, RunsAreAsLongAsTheirLimit) {
  using Sizes = std::vector<std::uint32_t>;
  UnitQueue queue(16);
  queue.Reset(1, Units(0, 16));
  EXPECT_EQ(Runs(queue), (Sizes{16}));
  queue.Reset(2, Units(0, 16), {}, {.units = 6});
  EXPECT_EQ(Runs(queue), (Sizes{6, 6, 4}));
  queue.Reset(3, Units(0, 16), {}, {.guided = true});
  EXPECT_EQ(Runs(queue), (Sizes{8, 4, 2, 1, 1}));
  queue.Reset(4, Units(0, 16), {}, {.units = 3, .guided = true});
  EXPECT_EQ(Runs(queue), (Sizes{3, 3, 3, 3, 2, 1, 1}));
}

// Units of the sizes that are given, in their order.
std::vector<Unit> UnitsOf(const std::vector<std::uint64_t>& sizes) {
  std::vector<Unit> units;
  std::uint64_t at = 0;
  for (const std::uint64_t size : sizes) {
    units.push_back({UnitIndex(static_cast<std::uint32_t>(units.size())), {at, at + size}});
    at += size;
  }
  return units;
}

// By samples, so that memory is enough whatever the plan says; a unit is never divided.
TEST(UnitQueue, NoRunIsAboveTheWorkersOwnBound) {
  using Sizes = std::vector<std::uint32_t>;
  const std::vector<Unit> units = UnitsOf({3, 3, 2, 3, 9, 1, 1, 1, 3});
  UnitQueue queue(32, {.samples = 8});
  queue.Reset(1, units);
  EXPECT_EQ(queue.PeekNext().size(), 3u);
  EXPECT_EQ(Runs(queue), (Sizes{3, 1, 1, 4})) << "of 8, of 3, of 9 alone, of 6";
  queue.Reset(2, units, {}, {.units = 2});
  EXPECT_EQ(Runs(queue), (Sizes{2, 2, 1, 2, 2})) << "the plan's limit holds too";
  queue.Reset(3, units, {}, {.guided = true});
  EXPECT_EQ(Runs(queue), (Sizes{3, 1, 1, 2, 1, 1}));

  UnitQueue one_by_one(32, {.samples = 8, .units = 1});
  one_by_one.Reset(1, UnitsOf({2, 2, 9}));
  EXPECT_EQ(Runs(one_by_one), (Sizes{1, 1, 1}));
  UnitQueue unbound(32);
  unbound.Reset(1, units);
  EXPECT_EQ(Runs(unbound), (Sizes{9}));
}

// Of a batch that is padded to its dearest sample.
TEST(UnitQueue, NoRunCostsMoreThanTheWorkersOwnBound) {
  using Sizes = std::vector<std::uint32_t>;
  const auto costs = std::make_shared<const std::vector<float>>(
      std::vector<float>{10, 1, 1, 30, 5, 5, 5, 5, 31, 2, 2, 2});
  UnitQueue queue(32, {}, 30);
  queue.SetCosts(costs);
  queue.Reset(1, Units(0, 12));
  EXPECT_EQ(queue.PeekNext().size(), 3u);
  EXPECT_EQ(Runs(queue), (Sizes{3, 1, 4, 1, 3})) << "10 x 3, 30, 5 x 4, 31 alone, 2 x 3";
  queue.Reset(2, Units(0, 12), {}, {.units = 2});
  EXPECT_EQ(Runs(queue), (Sizes{2, 1, 1, 2, 2, 1, 2, 1})) << "the plan's limit holds too";
  queue.Reset(3, UnitsOf({3, 1, 4, 2, 2}));
  EXPECT_EQ(Runs(queue), (Sizes{1, 1, 1, 1, 1})) << "31 x 2 and 2 x 2 fit in none beside others";

  UnitQueue both(32, {.samples = 2}, 30);
  both.SetCosts(costs);
  both.Reset(1, Units(0, 12));
  EXPECT_EQ(Runs(both), (Sizes{2, 1, 1, 2, 2, 1, 2, 1}));
}

TEST(UnitQueue, WhereCostsAreNotKnownEachUnitIsARun) {
  using Sizes = std::vector<std::uint32_t>;
  UnitQueue queue(32, {}, 30);
  queue.Reset(1, Units(0, 3));
  EXPECT_EQ(Runs(queue), (Sizes{1, 1, 1}));
  queue.SetCosts(std::make_shared<const std::vector<float>>(std::vector<float>{1, 1}));
  queue.Reset(2, Units(0, 4));
  EXPECT_EQ(Runs(queue), (Sizes{2, 1, 1})) << "two positions have a cost";
  queue.SetCosts(nullptr);
  queue.Reset(3, Units(0, 2));
  EXPECT_EQ(Runs(queue), (Sizes{1, 1}));

  // The bound holds for units that come later, too.
  queue.SetCosts(std::make_shared<const std::vector<float>>(std::vector<float>(9, 10)));
  queue.Reset(4, Units(0, 2));
  EXPECT_TRUE(queue.Append(Units(2, 7)));
  EXPECT_EQ(Runs(queue), (Sizes{3, 3, 3}));
}

// What a lost worker leaves comes behind what is there, with no plan of runs.
TEST(UnitQueue, WhatIsAppendedIsWithinTheBoundToo) {
  UnitQueue queue(64, {.samples = 4});
  queue.Reset(1, Units(0, 3));
  EXPECT_EQ(queue.TakeNext().count, 3u);
  queue.Append(Units(3, 9));
  EXPECT_EQ(Runs(queue), (std::vector<std::uint32_t>{4, 4, 1}));
  queue.Reset(2, {});
  queue.Append(Units(0, 5));
  EXPECT_EQ(Runs(queue), (std::vector<std::uint32_t>{4, 1}));
}

TEST(UnitQueue, ARevokeTakesWhatIsBehindTheRun) {
  UnitQueue queue(16);
  queue.Reset(1, Units(0, 10), {}, {.units = 4});
  const auto take = queue.TakeNext();
  EXPECT_EQ(take.position, 0u);
  EXPECT_EQ(take.count, 4u);
  EXPECT_EQ(queue.taken(), 4u);
  EXPECT_EQ(queue.RevokeFrom(1), 4u);
  EXPECT_EQ(queue.UnitAt(3), Units(3, 1).front());
  EXPECT_TRUE(queue.BeginSeal());
}

TEST(UnitQueue, PeekNextShowsWhatTheNextTakeGives) {
  UnitQueue queue(16);
  const std::vector<Unit> none;
  EXPECT_EQ(queue.PeekNext(), none);
  queue.Reset(1, Units(0, 5), {}, {.units = 2});
  queue.TakeNext();
  EXPECT_EQ(queue.PeekNext(), Units(2, 2));
  EXPECT_EQ(queue.RevokeFrom(0), 2u);
  EXPECT_EQ(queue.PeekNext(), none);
  queue.Append(Units(7, 1));
  EXPECT_EQ(queue.PeekNext(), Units(7, 1));
  queue.MakeVoid();
  EXPECT_EQ(queue.PeekNext(), none);
}

TEST(UnitQueue, VoidAndFull) {
  UnitQueue queue(3);
  queue.Reset(1, Units(0, 2));
  EXPECT_EQ(queue.Append(Units(2, 2)), std::nullopt);
  EXPECT_EQ(queue.size(), 2u);  // all or none
  queue.MakeVoid();
  EXPECT_TRUE(queue.IsVoid());
  EXPECT_EQ(queue.TakeNext().kind, Kind::kNone);
  EXPECT_EQ(queue.Append(Units(2, 1)), std::nullopt);
  queue.Reset(2, {}, PartIndex(1));
  EXPECT_EQ(queue.Append(Units(0, 1)), PartIndex(1));
}

// Memory comes piece by piece: none of it shows.
TEST(UnitQueue, AsManyUnitsAsItHolds) {
  constexpr std::uint32_t kUnits = 1000;
  UnitQueue queue(kUnits);
  queue.Reset(1, Units(0, 250), {}, {.units = 7});
  for (std::uint32_t first = 250; first < kUnits; first += 125) {
    ASSERT_EQ(queue.Append(Units(first, 125)), PartIndex(0));
  }
  EXPECT_EQ(queue.Append(Units(kUnits, 1)), std::nullopt);
  std::uint32_t next = 0;
  while (next < kUnits) {
    const auto peek = queue.PeekNext();
    const auto take = queue.TakeNext();
    ASSERT_EQ(take.kind, Kind::kRun);
    ASSERT_EQ(take.position, next);
    ASSERT_EQ(take.count, peek.size());
    for (std::uint32_t i = 0; i < take.count; ++i, ++next) {
      EXPECT_EQ(queue.UnitAt(next), Units(next, 1)[0]);
      EXPECT_EQ(peek[i], Units(next, 1)[0]);
    }
  }
  queue.Reset(2, Units(5, 1));
  EXPECT_EQ(queue.UnitAt(0), Units(5, 1)[0]);
}

// Two threads: each unit is either computed once or given back, in the part that Append named.
TEST(UnitQueue, EachUnitIsInOnePairOfHands) {
  constexpr std::uint32_t kUnits = 400;
  for (std::uint64_t round = 0; round < 300; ++round) {
    UnitQueue queue(kUnits);
    queue.Reset(static_cast<std::uint32_t>(round), Units(0, 20), {},
                {.units = static_cast<std::uint32_t>(round % 4), .guided = round % 3 == 0},
                round % 5 == 0 ? std::optional(Units(9999, 1).front()) : std::nullopt,
                round % 7 == 0);
    int audits = 0;
    std::atomic<bool> stop{false};
    std::vector<Unit> taken;
    std::thread compute([&] {
      for (bool last_look = false;;) {
        const UnitQueue::Take take = queue.TakeNext();
        queue.PeekNext();  // whatever it shows, it may look
        if (take.kind == Kind::kAudit) {
          ++audits;
          continue;
        }
        for (std::uint32_t i = 0; i < take.count; ++i) {
          taken.push_back(queue.UnitAt(take.position + i));
        }
        if (take.kind == Kind::kRun) queue.BeginSeal();
        if (take.kind != Kind::kNone) continue;
        if (last_look) return;
        last_look = stop.load();
        std::this_thread::yield();
      }
    });
    // What the owner of the tail knows: unit by position.
    std::vector<std::uint32_t> given;
    for (std::uint32_t i = 0; i < 20; ++i) given.push_back(i);
    std::vector<std::uint32_t> back;
    std::uint32_t next = 20;
    RandomStream random(round);
    for (int step = 0; step < 60; ++step) {
      if (random.NextBelow(2) == 0) {
        const auto count = static_cast<std::uint32_t>(1 + random.NextBelow(5));
        if (queue.Append(Units(next, count))) {
          for (std::uint32_t i = 0; i < count; ++i) given.push_back(next + i);
          next += count;
        }
      } else {
        const auto size = static_cast<std::uint32_t>(given.size());
        const std::uint32_t from = size - static_cast<std::uint32_t>(random.NextBelow(4));
        const std::uint32_t kept = queue.RevokeFrom(std::min(from, size));
        ASSERT_LE(kept, size);
        while (given.size() > kept) {
          back.push_back(given.back());
          given.pop_back();
        }
      }
    }
    stop = true;
    compute.join();
    EXPECT_EQ(audits, round % 5 == 0 ? 1 : 0);
    EXPECT_EQ(queue.audit_taken(), round % 5 == 0);
    ASSERT_EQ(taken.size(), given.size());
    for (std::size_t i = 0; i < taken.size(); ++i) {
      ASSERT_EQ(taken[i].index.value, given[i]);
    }
    ASSERT_EQ(given.size() + back.size(), next);
  }
}

}  // namespace
}  // namespace lockstep::worker
