// Checkpoints: a member that is fast streams its state after a round; the file becomes valid when
// all has come and the round is closed. One at a time.
#pragma once

#include <optional>

#include "base/messages.h"
#include "base/result.h"
#include "coordinator/job.h"
#include "coordinator/job_state.h"
#include "coordinator/round_machine.h"

namespace lockstep::coordinator {

class Checkpointer {
 public:
  explicit Checkpointer(Job* job) : job_(job) {}

  // At a commit: names its writer if a checkpoint is due. `after`: the sampler after the round.
  void AtCommit(Commit* commit, const Sampler& after, bool epoch_ended, bool last);
  void OnClosed(RoundId round);
  Status On(Member& from, StateChunk message);
  void OnOut(const MemberId& member);
  void Tick();  // gives up a writer that does not write
  void OnSaved(RoundId round, const std::string& error);

  // The state after `round` is saved, or cannot be.
  bool Settled(RoundId round) const { return settled_ == round; }
  bool running() const { return current_.has_value(); }
  void GiveUp();

 private:
  struct Current {
    JobState state;
    RoundId round;
    MemberId writer;
    bool closed = false;
    bool complete = false;
    bool saving = false;
    std::uint32_t tensor = 0;  // expected next
    std::uint64_t offset = 0;
    bool any = false;  // a piece has been handed on
    Time last_piece;
  };
  std::optional<MemberId> ChooseWriter(const Commit& commit) const;
  void SaveIfPossible();
  void Drop();

  Job* job_;
  bool owed_ = false;  // one was due while another was under way
  std::optional<Current> current_;
  std::optional<RoundId> closed_;
  std::optional<RoundId> settled_;
};

}  // namespace lockstep::coordinator
