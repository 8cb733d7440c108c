// Where the compute thread picks up its work and the data thread lays it down.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "worker/core/step_io.h"
#include "worker/core/unit_queue.h"

namespace lockstep::worker {

// As Work has it at kEnd.
struct Ending {
  std::string reason;
  bool failed = false;
  bool unfit = false;
  bool left = false;
  bool final_parameters = false;
  std::string params_digest = {};
  std::string not_final = {};
  bool early = false;
  std::vector<SealedPart> applied = {};
  bool copied = false;
};

// An update that the program is to make, with the gradient in WorkerBuffers::update_gradient().
struct ProgramUpdate {
  std::uint64_t op = 0;  // of action::Apply
  RoundId round;
  float learning_rate = 0;
  float fraction = 1;
  std::uint64_t samples = 0;
  std::uint64_t steps = 0;
  double position = 0;  // of the schedule
  std::uint32_t digest_bucket = 0;
};

// The counts that the newest commit that has come says of its round.
struct CommittedCounts {
  RoundId round;
  Attempt attempt;
  Epoch epoch;
  std::uint64_t samples = 0;
  double loss = 0;  // mean over them
  std::vector<Metric> metrics;
  std::string policy;
  std::vector<std::uint64_t> slow;  // workers
};

class ComputeQueue {
 public:
  struct Pick {
    enum class Kind : std::uint8_t {
      kUpdate,
      kEpochEnd,
      kRun,
      kSeal,
      kEvaluate,
      kOrphaned,
      kDetached,
      kEnd,
      kNone
    };
    Kind kind = Kind::kEnd;
    action::StartWork work;       // kRun, kSeal
    UnitQueue::Take take;         // kRun, kSeal
    std::vector<Unit> units;      // kRun, also of a take that is audited and counts for nothing
    action::EvaluateChunk chunk;  // kEvaluate
    ProgramUpdate update;         // kUpdate
    action::EpochEnd epoch_end;   // kEpochEnd
    action::Orphaned orphaned;    // kOrphaned
    action::Detached detached;    // kDetached
    Ending ending;                // kEnd
    // Null: nothing is committed yet. kEpochEnd: of the epoch's last round, kUpdate: of that round,
    // where it is kept.
    std::shared_ptr<const CommittedCounts> counts;
  };

  // --- data thread ---
  // `queue` outlives this.
  void StartWork(UnitQueue* queue, const action::StartWork& work);
  void WakeCompute();
  void VoidWork();
  void Evaluate(const action::EvaluateChunk& chunk);
  // Comes before all work of the next epoch.
  void EndEpoch(const action::EpochEnd& end);
  // Comes before all else. Any thread.
  void Update(const ProgramUpdate& update);
  // Shown to whoever picks from here on. Any thread.
  void Committed(const msg::Commit& commit);
  // The coordinator is gone: updates, ends of epochs and this are all that there is, until Expect.
  void Orphan(action::Orphaned orphaned);
  void Detach(action::Detached detached);
  // The first one counts; any thread.
  void End(Ending ending);

  // Called after cancelled() has become true, by the thread that made it so. Set before work
  // starts.
  void OnCancelled(std::function<void()> wake);

  // --- compute thread ---
  // Blocks until there is something, or for so long: kNone.
  Pick Next(Duration limit);
  // As the queue has them, while a run is in hand.
  std::vector<Unit> PeekNext() const { return queue_->PeekNext(); }
  bool BeginSeal() { return queue_->BeginSeal(); }
  // The next coordinator is there: kDetached comes.
  void ExpectDetached();
  // All that comes next is of another core. Its data thread has not begun, that of the one before
  // has ended.
  void Reset();
  // True once the run in hand cannot count any more.
  const std::atomic<bool>& cancelled() const { return cancelled_; }
  // True once there is nothing more to do at all.
  const std::atomic<bool>& ended() const { return ended_; }

 private:
  // As many rounds as can have closed since the parameters were those of an epoch's end.
  static constexpr std::size_t kKeptCounts = 8;

  // The newest of the rounds before this one, else the newest of all.
  std::shared_ptr<const CommittedCounts> CountsBefore(RoundId round) const;
  // Of that round, else the newest of all.
  std::shared_ptr<const CommittedCounts> CountsOf(RoundId round) const;

  std::mutex mutex_;
  std::condition_variable wake_;
  UnitQueue* queue_ = nullptr;
  action::StartWork work_;
  std::atomic<bool> cancelled_{false};
  bool look_ = false;  // there may be something in the queue
  std::optional<action::EvaluateChunk> chunk_;
  std::optional<ProgramUpdate> update_;
  std::optional<action::EpochEnd> epoch_end_;
  std::optional<action::Orphaned> orphaned_;
  bool expects_detached_ = false;
  std::optional<action::Detached> detached_;
  std::atomic<bool> ended_{false};
  std::function<void()> wake_cancelled_;
  std::shared_ptr<const CommittedCounts> counts_;
  std::deque<std::shared_ptr<const CommittedCounts>>
      last_counts_;  // of the last commits, ascending
  Ending ending_;
};

}  // namespace lockstep::worker
