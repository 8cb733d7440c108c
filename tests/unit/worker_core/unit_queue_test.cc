#include "worker/core/unit_queue.h"

#include <gtest/gtest.h>

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

TEST(UnitQueue, TheLastUnitSealsItsPart) {
  UnitQueue queue(16);
  queue.Reset(5, Units(0, 2));
  auto take = queue.TakeNext();
  EXPECT_EQ(take.work, 5u);
  EXPECT_FALSE(take.last);
  EXPECT_EQ(queue.Append(Units(2, 1)), PartIndex(0));
  EXPECT_FALSE(queue.TakeNext().last);
  take = queue.TakeNext();
  EXPECT_TRUE(take.last);
  EXPECT_EQ(take.part, PartIndex(0));
  EXPECT_EQ(queue.seals_begun(), 1u);
  EXPECT_EQ(queue.TakeNext().kind, Kind::kNone);

  EXPECT_EQ(queue.Append(Units(3, 2)), PartIndex(1));
  EXPECT_EQ(queue.TakeNext().part, PartIndex(1));
  EXPECT_TRUE(queue.TakeNext().last);
  EXPECT_EQ(queue.Append(Units(5, 1)), std::nullopt);
}

TEST(UnitQueue, WhatWasToBeLastMayBeRevoked) {
  UnitQueue queue(16);
  queue.Reset(1, Units(0, 4));
  EXPECT_EQ(queue.TakeNext().kind, Kind::kUnit);
  EXPECT_EQ(queue.RevokeFrom(0), 1u);  // one is begun
  EXPECT_EQ(queue.TakeNext().kind, Kind::kSeal);
  EXPECT_EQ(queue.TakeNext().kind, Kind::kNone);
}

TEST(UnitQueue, NothingIsSealedThatHasNoUnit) {
  UnitQueue queue(16);
  queue.Reset(1, Units(0, 2));
  EXPECT_EQ(queue.RevokeFrom(9), 2u);
  EXPECT_EQ(queue.RevokeFrom(0), 0u);
  EXPECT_EQ(queue.TakeNext().kind, Kind::kNone);
  EXPECT_EQ(queue.Append(Units(0, 1)), PartIndex(0));
}

TEST(UnitQueue, PeekNextShowsWhatTheNextTakeGives) {
  UnitQueue queue(16);
  EXPECT_EQ(queue.PeekNext(), std::nullopt);
  queue.Reset(1, Units(0, 3));
  queue.TakeNext();
  EXPECT_EQ(queue.PeekNext(), Units(1, 1).front());
  EXPECT_EQ(queue.RevokeFrom(0), 1u);
  EXPECT_EQ(queue.PeekNext(), std::nullopt);
  queue.Append(Units(7, 1));
  EXPECT_EQ(queue.PeekNext(), Units(7, 1).front());
  queue.MakeVoid();
  EXPECT_EQ(queue.PeekNext(), std::nullopt);
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

// Two threads: each unit is either computed once or given back, in the part that Append named.
TEST(UnitQueue, EachUnitIsInOnePairOfHands) {
  constexpr std::uint32_t kUnits = 400;
  for (std::uint64_t round = 0; round < 300; ++round) {
    UnitQueue queue(kUnits);
    queue.Reset(static_cast<std::uint32_t>(round), Units(0, 20));
    std::atomic<bool> stop{false};
    std::vector<UnitQueue::Take> taken;
    std::thread compute([&] {
      for (bool last_look = false;;) {
        const UnitQueue::Take take = queue.TakeNext();
        queue.PeekNext();  // whatever it shows, it may look
        if (take.kind == Kind::kUnit) taken.push_back(take);
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
    ASSERT_EQ(taken.size(), given.size());
    for (std::size_t i = 0; i < taken.size(); ++i) {
      ASSERT_EQ(taken[i].position, i);
      ASSERT_EQ(taken[i].unit.index.value, given[i]);
    }
    ASSERT_EQ(given.size() + back.size(), next);
  }
}

}  // namespace
}  // namespace lockstep::worker
