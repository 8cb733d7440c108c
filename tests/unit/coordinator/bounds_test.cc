#include "coordinator/job/bounds.h"

#include <gtest/gtest.h>

namespace lockstep::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Bounds, OfAnOwnerFollowTheMedian) {
  Bounds bounds(seconds(10));
  EXPECT_EQ(bounds.Publication(), milliseconds(2500));
  for (int i = 0; i < 9; ++i) bounds.NotePublication(milliseconds(100));
  for (int i = 0; i < 4; ++i) bounds.NotePublication(seconds(9));
  EXPECT_EQ(bounds.Publication(), seconds(1));
  EXPECT_EQ(bounds.Answer(), seconds(1));
  EXPECT_EQ(bounds.Receipts(), milliseconds(2500));  // of which nothing is known
  for (int i = 0; i < 99; ++i) bounds.NotePublication(milliseconds(1));
  EXPECT_EQ(bounds.Publication(), milliseconds(250));
  for (int i = 0; i < 99; ++i) bounds.NotePublication(seconds(1));
  EXPECT_EQ(bounds.Publication(), seconds(5));  // half of the time-out
  EXPECT_EQ(Bounds(milliseconds(100)).Publication(), milliseconds(250));
}

// To be wrong about who is silent costs little before the commit, and less where one stands in.
TEST(Bounds, AreShorterWhereItCostsLittleToBeWrong) {
  Bounds bounds(seconds(10));
  for (int i = 0; i < 8; ++i) bounds.NotePublication(milliseconds(5));
  EXPECT_EQ(bounds.Hedge(2), milliseconds(22));
  for (int i = 0; i < 9; ++i) bounds.NotePublication(seconds(3));
  EXPECT_EQ(bounds.Hedge(2), seconds(6));  // not after the owner is blamed
  EXPECT_EQ(bounds.Publication(), seconds(6));
  bounds.NoteReceipts(milliseconds(1));
  EXPECT_EQ(bounds.Receipts(), milliseconds(25));
}

// The first rounds touch each buffer for the first time: what they take is not usual.
TEST(Bounds, NobodyStandsInBeforeFourRoundsAreKnown) {
  Bounds bounds(seconds(10));
  EXPECT_FALSE(bounds.Hedge(3));
  for (int i = 0; i < 11; ++i) bounds.NotePublication(milliseconds(5));
  EXPECT_FALSE(bounds.Hedge(3));
  EXPECT_TRUE(bounds.Hedge(2));
  bounds.NotePublication(milliseconds(5));
  EXPECT_EQ(bounds.Hedge(3), milliseconds(22));
  // Of many owners the latest few dozens are enough: more are not kept.
  EXPECT_FALSE(bounds.Hedge(1000));
  for (int i = 0; i < 35; ++i) bounds.NotePublication(milliseconds(5));
  EXPECT_FALSE(bounds.Hedge(1000));
  bounds.NotePublication(milliseconds(5));
  EXPECT_EQ(bounds.Hedge(1000), milliseconds(22));
}

// Where each round takes longer than the time-out, its owners do not become suspects for that.
TEST(Bounds, OfAnOwnerAreNeverLessThanTwiceWhatIsUsual) {
  Bounds bounds(seconds(10));
  for (int i = 0; i < 5; ++i) bounds.NoteReceipts(seconds(40));
  EXPECT_EQ(bounds.Receipts(), seconds(80));
}

TEST(Bounds, OfBulkAreTheTimeoutsOrTenTimesWhatARoundTakes) {
  Bounds bounds(seconds(10));
  EXPECT_EQ(bounds.LastRound(), seconds(10));
  EXPECT_EQ(bounds.Following(), seconds(30));
  EXPECT_EQ(bounds.Upload(), seconds(30));
  EXPECT_EQ(bounds.Copy(), seconds(60));
  EXPECT_EQ(bounds.Stuck(), seconds(60));
  for (int i = 0; i < 5; ++i) bounds.NoteApplication(milliseconds(50));
  EXPECT_EQ(bounds.LastRound(), seconds(10));
  for (int i = 0; i < 9; ++i) bounds.NoteApplication(seconds(12));
  EXPECT_EQ(bounds.LastRound(), seconds(120));
  EXPECT_EQ(bounds.Following(), seconds(120));
  EXPECT_EQ(bounds.Upload(), seconds(120));
  EXPECT_EQ(bounds.Copy(), seconds(120));
  EXPECT_EQ(bounds.Stuck(), seconds(120));
}

// A job of one round: 1.4 GB over 125 MB/s take 22.4 s at best.
TEST(Bounds, OfTheFirstRoundFollowFromWhatThePathsWereMeasuredAt) {
  Bounds bounds(seconds(10));
  bounds.NotePaths(1'400'000'000, 125e6);
  EXPECT_EQ(bounds.LastRound(), milliseconds(224'000));
  EXPECT_EQ(bounds.Publication(), milliseconds(44'800));
  bounds.NoteApplication(seconds(2));  // what is known better
  EXPECT_EQ(bounds.LastRound(), seconds(20));
  bounds.NotePaths(1'400'000'000, 0);  // not measured
  EXPECT_EQ(bounds.Publication(), milliseconds(2500));
}

TEST(Bounds, OfWhatIsComputedAtTheSide) {
  Bounds bounds(seconds(10));
  EXPECT_EQ(bounds.EvaluationChunk(), seconds(10));
  for (int i = 0; i < 3; ++i) bounds.NoteEvaluatedChunk(seconds(4));
  EXPECT_EQ(bounds.EvaluationChunk(), seconds(40));
  EXPECT_EQ(bounds.FinalDigest(100'000'000), seconds(10));
  EXPECT_EQ(bounds.FinalDigest(10'000'000'000), seconds(100));
}

}  // namespace
}  // namespace lockstep::coordinator
