// The end of a job and what outlives it: interrupts, the last evaluation, checkpoints, resuming.
#include <gtest/gtest.h>

#include "coordinator/core/resume_rules.h"
#include "tests/golden/golden.h"
#include "tests/golden/story.h"

namespace lockstep::coordinator {
namespace {

TEST(Golden, Interrupt) {
  Story s("SIGINT: the open round is the last, its state is saved", {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  s.Sealed(0);
  s.Interrupt();
  s.Sealed(1);
  s.Sealed(2);
  s.AllPublishAndApply({0, 1, 2});
  s.Upload(0, 1);
  for (std::uint32_t w : {0u, 1u, 2u}) s.TellState(w, 1);
  s.Saved(1);
  for (std::uint32_t w : {0u, 1u, 2u}) s.From(w, msg::Final{RoundId(1), "f00d"});
  CompareWithFile(s.text(), "interrupt");
}

TEST(Golden, InterruptAbandonsTheRound) {
  Story s("SIGINT, and the open round does not close in time: the one before it was the last", {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  s.Sealed(0);
  s.Interrupt();
  for (int i = 0; i < 3; ++i) {
    s.Wait(2);
    for (std::uint32_t w : {0u, 1u, 2u}) s.Pong(w);
  }
  s.Upload(0, 0);
  for (std::uint32_t w : {0u, 1u, 2u}) s.TellState(w, 0);
  s.Saved(0);
  for (std::uint32_t w : {0u, 1u, 2u}) s.From(w, msg::Final{RoundId(0), "f00d"});
  CompareWithFile(s.text(), "interrupt_abandons");
}

TEST(Golden, StoppedByItsProgram) {
  Story s("Two workers say that the program has what it wanted: the committed round was the last",
          {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  s.Sealed(0);
  s.From(1, msg::StopAsked{"the loss does not get any better"});
  s.Sealed(1);
  s.From(2, msg::StopAsked{"the loss does not get any better"});
  s.Sealed(2);
  s.Upload(0, 0);
  for (std::uint32_t w : {0u, 1u, 2u}) s.TellState(w, 0);
  s.Saved(0);
  for (std::uint32_t w : {0u, 1u, 2u}) s.From(w, msg::Final{RoundId(0), "f00d"});
  EXPECT_TRUE(s.finished());
  CompareWithFile(s.text(), "stopped_by_its_program");
}

TEST(Golden, InterruptedWhileItsProgramEndsIt) {
  Story s(
      "A program stops the job, and SIGTERM comes while its checkpoint is written, once: it is "
      "written, and the job completed",
      {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  s.From(1, msg::StopAsked{"the loss does not get any better"});
  s.Interrupt();
  s.Upload(0, 0);
  for (std::uint32_t w : {0u, 1u, 2u}) s.TellState(w, 0);
  s.Saved(0);
  for (std::uint32_t w : {0u, 1u, 2u}) s.From(w, msg::Final{RoundId(0), "f00d"});
  EXPECT_TRUE(s.finished());
  CompareWithFile(s.text(), "interrupted_while_its_program_ends_it");
}

TEST(Golden, StoppedByItsProgramWhileInterrupted) {
  Story s(
      "SIGINT, and a program that has heard of it stops the job: what it says of its run counts "
      "for nothing",
      {});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  s.Sealed(0);
  s.Interrupt();
  s.From(1, msg::StopAsked{"SIGTERM"});
  s.Sealed(1);
  s.Sealed(2);
  s.Upload(0, 0);
  for (std::uint32_t w : {0u, 1u, 2u}) s.TellState(w, 0);
  s.Saved(0);
  for (std::uint32_t w : {0u, 1u, 2u}) s.From(w, msg::Final{RoundId(0), "f00d"});
  EXPECT_TRUE(s.finished());
  CompareWithFile(s.text(), "stopped_by_its_program_while_interrupted");
}

TEST(Golden, StoppedWhileACheckpointIsWritten) {
  Story s("A program stops the job just when an epoch's checkpoint has begun: that goes on",
          {.epochs = 5, .checkpoint_every_epochs = 1, .rounds = 0, .train_samples = 12});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  s.Say("Worker 1 has said what its state is, and says it once.");
  s.TellState(1, 0);
  s.From(1, msg::StopAsked{"the loss does not get any better"});
  s.TellState(0, 0);
  s.Upload(0, 0);
  s.Saved(0);
  for (std::uint32_t w : {0u, 1u, 2u}) s.From(w, msg::Final{RoundId(0), "f00d"});
  EXPECT_TRUE(s.finished());
  CompareWithFile(s.text(), "stopped_while_a_checkpoint_is_written");
}

TEST(Golden, TheEnd) {
  Story s("The last round: evaluation, checkpoint, digests",
          {.workers = 2, .rounds = 1, .test_samples = 8});
  s.Begin();
  s.Sealed(0);
  s.Sealed(1);
  s.AllPublishAndApply({0, 1});
  for (std::uint32_t w : {0u, 1u}) s.TellState(w, 0);
  s.Upload(0, 0);
  s.Saved(0);
  for (std::uint64_t i = 0; i < 8; ++i) {
    s.From(i % 2, msg::EvaluationResult{1, {i, i + 1}, 1.0, i % 4 == 0 ? 0u : 1u});
  }
  s.From(0, msg::Final{RoundId(0), "f00d"});
  s.From(1, msg::Final{RoundId(0), "f00d"});
  CompareWithFile(s.text(), "the_end");
}

TEST(Golden, TheCheckpointOfAContributor) {
  Story s("A checkpoint is written by who contributed to its round, however quick another one is",
          {.policy = "backup", .rounds = 2});
  s.Begin();
  s.Say("Worker 0 has the shortest units.");
  s.Sealed(0, 1);
  s.Sealed(1, 20);
  s.AllPublishAndApply({0, 1, 2});
  s.Say("The last round does without it, so the checkpoint does, too.");
  s.Sealed(2, 20);
  s.Sealed(1, 20);
  s.AllPublishAndApply({0, 1, 2});
  for (std::uint32_t w : {0u, 1u, 2u}) s.TellState(w, 1);
  s.Upload(1, 1);
  s.Saved(1);
  CompareWithFile(s.text(), "checkpoint_of_a_contributor");
}

JobState Resumable() {
  JobState state;
  state.next_round = RoundId(7);
  state.updates = 7;
  state.sampler = {120, Epoch(1), {{4, 8}, {96, 120}}};
  state.dataset_digest = "abc";
  state.parameter_count = 2;
  state.state_tensors = 1;
  state.settings = SettingsToRemember(JobConfig());
  return state;
}

TEST(Golden, Resume) {
  Story s("A job is resumed: everybody gets the checkpoint, then the round after it",
          {.workers = 2, .resume = Resumable()});
  s.Begin();
  s.From(0, msg::CheckpointTaken{4});
  s.From(0, msg::CheckpointTaken{16});
  s.From(1, msg::CheckpointTaken{16});
  s.Sealed(0);
  s.Sealed(1);
  CompareWithFile(s.text(), "resume");
}

TEST(Golden, ResumeAtTheEnd) {
  Story s("A job is resumed from its last checkpoint: everybody gets that, and it ends",
          {.workers = 2, .rounds = 7, .resume = Resumable()});
  s.Begin();
  for (std::uint32_t w : {0u, 1u}) s.From(w, msg::CheckpointTaken{16});
  for (std::uint32_t w : {0u, 1u}) s.From(w, msg::Final{RoundId(6), "d"});
  CompareWithFile(s.text(), "resume_at_the_end");
}

TEST(Golden, ResumeWithoutEnough) {
  Story s("A worker takes nothing of the checkpoint and is out; nobody comes, and the job ends",
          {.workers = 2, .min_workers = 2, .resume = Resumable()});
  s.Begin();
  s.From(0, msg::CheckpointTaken{16});
  for (int i = 0; i < 6; ++i) {
    s.Wait(2);
    for (std::uint32_t w : {0u, 1u}) s.Pong(w);
  }
  for (int i = 0; i < 35; ++i) {
    s.Wait(2);
    s.Pong(0);
  }
  CompareWithFile(s.text(), "resume_without_enough");
}

TEST(Golden, CheckpointIsNotConfirmed) {
  Story s("What a worker writes is not what the others have: it catches up, another one writes",
          {.rounds = 1});
  s.Begin();
  for (std::uint32_t w : {0u, 1u, 2u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1, 2});
  s.Upload(0, 0, true);
  s.TellState(0, 0, true);
  s.TellState(1, 0);
  s.TellState(2, 0);
  s.Upload(1, 0);
  s.TellState(1, 0);
  s.TellState(2, 0);
  s.Saved(0);
  s.Say("The job waits for who has not what it ended with.");
  s.From(0, msg::Pong{0, 0, 0});
  s.From(0, msg::Level{RoundId(0)});
  CompareWithFile(s.text(), "checkpoint_not_confirmed");
}

TEST(Golden, CheckpointIsMangledOnItsWay) {
  Story s("A worker's state is right, what comes of it is not: another one writes, then none can",
          {.workers = 2, .rounds = 1});
  s.Begin();
  for (std::uint32_t w : {0u, 1u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1});
  for (std::uint32_t w : {0u, 1u}) s.TellState(w, 0);
  s.Upload(0, 0, true);
  for (std::uint32_t w : {0u, 1u}) s.TellState(w, 0);
  s.Upload(1, 0, true);
  for (std::uint32_t w : {0u, 1u}) s.From(w, msg::Final{RoundId(0), "f00d"});
  CompareWithFile(s.text(), "checkpoint_mangled");
}

TEST(Golden, TheLastCheckpointCannotBeWritten) {
  Story s("The disk is full at the last checkpoint: the job has failed",
          {.workers = 2, .rounds = 1});
  s.Begin();
  for (std::uint32_t w : {0u, 1u}) s.Sealed(w);
  s.AllPublishAndApply({0, 1});
  s.Upload(0, 0);
  for (std::uint32_t w : {0u, 1u}) s.TellState(w, 0);
  s.Saved(0, "x.safetensors: cannot be written: No space left on device");
  for (std::uint32_t w : {0u, 1u}) s.From(w, msg::Final{RoundId(0), "f00d"});
  CompareWithFile(s.text(), "last_checkpoint_fails");
}

}  // namespace
}  // namespace lockstep::coordinator
