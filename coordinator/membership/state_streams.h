// Resume: the checkpoint goes to each worker at that worker's own pace. The worker reports how much
// it has stored, and gets so much more. So the bytes under way to one worker, and the number of
// streams, are bounded for any size of checkpoint. A worker that stores nothing for
// liveness.timeout is evicted.
#pragma once

#include <cstdint>
#include <map>

#include "base/messages.h"
#include "base/result.h"
#include "coordinator/job/context.h"

namespace lockstep::coordinator {

class StateStreams {
 public:
  static constexpr std::uint64_t kBytesUnderWay = 4u << 20;  // to one worker
  static constexpr std::uint32_t kAtOnce = 16;               // workers; the others wait their turn

  explicit StateStreams(Job* job) : job_(job) {}

  // The member gets the checkpoint, from its first byte on. Once for each member.
  void Begin(const Member& to);
  Status OnCheckpointTaken(Member& from, const msg::CheckpointTaken& message);
  void OnOut(const MemberId& member);
  void Tick();
  void CheckInvariants() const;

  // A member waits for bytes, or for its turn.
  bool busy() const { return running_ > 0; }
  // The member has all of it.
  bool HasAll(const MemberId& member) const;

 private:
  // taken <= sent <= Total(), and sent - taken <= kBytesUnderWay.
  struct Stream {
    bool begun = false;       // false: it waits for its turn
    std::uint64_t taken = 0;  // bytes that it says it has stored
    std::uint64_t sent = 0;   // bytes that may be sent
    Time moved;               // when something was taken last
  };
  std::uint64_t Total() const;
  void Send(const MemberId& to, Stream& stream);
  void BeginWaiting();

  Job* job_;
  std::map<MemberId, Stream> streams_;  // at most one for each slot; stays while its member does
  std::uint32_t running_ = 0;           // that are not at their end
};

}  // namespace lockstep::coordinator
