// How a checkpoint goes out: bounded for each worker, and to a bounded number at a time.
#include "coordinator/membership/state_streams.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "policies/registry.h"
#include "tests/unit/coordinator/owned_in_tests.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kWorkers = 20;

class StateStreamsTest : public ::testing::Test {
 protected:
  StateStreamsTest() : job_(Start(), Rules(), 1), streams_(&job_) {
    Edit(job_.out) = &actions_;
    Edit(job_.now) = Time(std::chrono::seconds(1));
    Edit(job_.agreed).parameter_count = 10u << 20;
    Edit(job_.agreed).state_tensors = 2;
    for (std::uint64_t i = 0; i < kWorkers; ++i) {
      job_.members.TakeSlot(std::nullopt, ConnectionId(i + 1), Time{});
    }
  }
  static StartParameters Start() {
    StartParameters start;
    start.workers = kWorkers;
    start.config.liveness.timeout_s = 10;
    return start;
  }
  static policies::Policy Rules() { return *policies::MakePolicy(PolicySection(), kWorkers); }
  Member& At(std::uint32_t worker) { return job_.members.at(WorkerId(worker)); }
  // What each worker may have been sent, by the actions so far.
  std::map<std::uint32_t, std::uint64_t> Sent() {
    for (const Action& action : actions_) {
      if (const auto* stream = std::get_if<StreamState>(&action)) {
        sent_[static_cast<std::uint32_t>(stream->to.value - 1)] = stream->upto;
      }
    }
    actions_.clear();
    return sent_;
  }

  static constexpr std::uint64_t kTotal = (std::uint64_t{10} << 20) * 4 * 3;
  Actions actions_;
  std::map<std::uint32_t, std::uint64_t> sent_;
  Job job_;
  StateStreams streams_;
};

TEST_F(StateStreamsTest, NoMoreIsUnderWayThanTheBound) {
  for (std::uint32_t w = 0; w < kWorkers; ++w) streams_.Begin(At(w));
  std::map<std::uint32_t, std::uint64_t> taken;
  std::uint32_t most = 0;
  while (streams_.busy()) {
    std::uint32_t under_way = 0;
    for (const auto& [w, sent] : Sent()) {
      EXPECT_LE(sent - taken[w], StateStreams::kBytesUnderWay);
      under_way += sent > taken[w] ? 1 : 0;
    }
    most = std::max(most, under_way);
    ASSERT_GT(under_way, 0u) << "nobody gets anything";
    // Each at its own pace.
    for (const auto& [w, sent] : Sent()) {
      if (sent == taken[w]) continue;
      taken[w] = std::min(sent, taken[w] + (1u << 20) * (1 + w % 3));
      ASSERT_TRUE(streams_.OnCheckpointTaken(At(w), msg::CheckpointTaken{taken[w]}).ok());
    }
  }
  EXPECT_EQ(most, StateStreams::kAtOnce);
  for (std::uint32_t w = 0; w < kWorkers; ++w) {
    EXPECT_EQ(taken[w], kTotal);
    EXPECT_TRUE(streams_.HasAll(At(w).id));
  }
}

TEST_F(StateStreamsTest, WhoTakesNothingIsOutAndItsPlaceIsFree) {
  for (std::uint32_t w = 0; w < kWorkers; ++w) streams_.Begin(At(w));
  ASSERT_TRUE(streams_.OnCheckpointTaken(At(0), msg::CheckpointTaken{1000}).ok());
  Edit(job_.now) += std::chrono::seconds(9);
  ASSERT_TRUE(streams_.OnCheckpointTaken(At(1), msg::CheckpointTaken{1}).ok());
  Edit(job_.now) += std::chrono::seconds(1);
  streams_.Tick();
  ASSERT_EQ(job_.leaving().size(), StateStreams::kAtOnce - 1);  // those that wait are not judged
  EXPECT_THAT(job_.leaving().front().reason,
              HasSubstr("stored nothing of the checkpoint for 10.0 s"));
  for (const Leaving& leaving : job_.leaving()) {
    EXPECT_NE(leaving.member, At(1).id);
    streams_.OnOut(leaving.member);
  }
  for (std::uint32_t w = StateStreams::kAtOnce; w < kWorkers; ++w) EXPECT_TRUE(Sent().contains(w));
  EXPECT_TRUE(streams_.busy());
}

TEST_F(StateStreamsTest, WhatWasNotSentCannotBeTaken) {
  EXPECT_FALSE(streams_.OnCheckpointTaken(At(0), msg::CheckpointTaken{0}).ok());
  streams_.Begin(At(0));
  EXPECT_FALSE(
      streams_.OnCheckpointTaken(At(0), msg::CheckpointTaken{StateStreams::kBytesUnderWay + 1})
          .ok());
  ASSERT_TRUE(streams_.OnCheckpointTaken(At(0), msg::CheckpointTaken{10}).ok());
  EXPECT_FALSE(streams_.OnCheckpointTaken(At(0), msg::CheckpointTaken{9}).ok());
}

}  // namespace
}  // namespace lockstep::coordinator
