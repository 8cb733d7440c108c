// Whose results of the test set count: those of members that were asked, late or not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/golden/story.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The last round is published, and its evaluation has begun with whoever has applied it.
void UntilPublished(Story* s) {
  s->Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s->Sealed(w);
  for (std::uint32_t w : {0u, 1u, 2u}) s->Published(w);
}

msg::EvaluationResult ChunkResult(std::uint64_t chunk) { return {1, {chunk, chunk + 1}, 1.0, 1}; }

TEST(Evaluation, TakesNoResultOfWhoWasNotAsked) {
  Story s("test", {.rounds = 1, .test_samples = 12});
  UntilPublished(&s);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Applied(w);
  s.From(0, ChunkResult(0));
  EXPECT_TRUE(s.IsConnected(0));
  s.From(0, ChunkResult(1));
  EXPECT_FALSE(s.IsConnected(0));
  EXPECT_THAT(s.text(), HasSubstr("it broke the protocol: it evaluated what was not asked"));
}

TEST(Evaluation, TakesWhatIsLateAndWasGivenToAnotherOneMeanwhile) {
  Story s("test", {.rounds = 1, .test_samples = 2});
  UntilPublished(&s);
  for (std::uint32_t w : {0u, 1u, 2u}) s.Applied(w);
  s.From(1, ChunkResult(1));
  for (int i = 0; i < 30; ++i) {
    s.Wait(0.5);
    for (std::uint32_t w : {0u, 1u, 2u}) s.Pong(w);
  }
  EXPECT_THAT(s.text(), HasSubstr("-> 1: Evaluate 1")) << "the chunk of worker 0";
  s.From(0, ChunkResult(0));
  s.From(1, ChunkResult(0));
  EXPECT_TRUE(s.IsConnected(0) && s.IsConnected(1));
  EXPECT_THAT(s.text(), HasSubstr("evaluation after round 0: accuracy 1.00"));
}

TEST(Evaluation, SaysWhichRoundIsNotEvaluatedForAnother) {
  Story s("test", {.rounds = 3, .test_samples = 12, .evaluation_every_rounds = 1});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  EXPECT_THAT(s.text(), Not(HasSubstr("is not evaluated")));
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  EXPECT_THAT(s.text(), HasSubstr("round 1 is not evaluated: the evaluation after round 0"));
}

TEST(Evaluation, GivesNothingToWhoHasTheSnapshotNoMore) {
  Story s("test", {.rounds = 1, .test_samples = 12});
  UntilPublished(&s);
  s.Applied(2, 0xe);
  s.Applied(0);
  s.Applied(1);
  const std::size_t before = s.text().size();
  s.From(2, ChunkResult(0));
  EXPECT_TRUE(s.IsConnected(2));
  EXPECT_THAT(s.text().substr(before), Not(HasSubstr("Evaluate 1 ")));
}

}  // namespace
}  // namespace lockstep::coordinator
