// Where the compute thread picks up its work and the data thread lays it down.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
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
};

class ComputeQueue {
 public:
  struct Pick {
    enum class Kind : std::uint8_t { kRun, kSeal, kEvaluate, kEnd, kNone };
    Kind kind = Kind::kEnd;
    action::StartWork work;       // kRun, kSeal
    UnitQueue::Take take;         // kRun, kSeal
    std::vector<Unit> units;      // kRun
    action::EvaluateChunk chunk;  // kEvaluate
    Ending ending;                // kEnd
  };

  // --- data thread ---
  // `queue` outlives this.
  void StartWork(UnitQueue* queue, const action::StartWork& work);
  void WakeCompute();
  void VoidWork();
  void Evaluate(const action::EvaluateChunk& chunk);
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
  // True once the run in hand cannot count any more.
  const std::atomic<bool>& cancelled() const { return cancelled_; }
  // True once there is nothing more to do at all.
  const std::atomic<bool>& ended() const { return ended_; }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  UnitQueue* queue_ = nullptr;
  action::StartWork work_;
  std::atomic<bool> cancelled_{false};
  bool look_ = false;  // there may be something in the queue
  std::optional<action::EvaluateChunk> chunk_;
  std::atomic<bool> ended_{false};
  std::function<void()> wake_cancelled_;
  Ending ending_;
};

}  // namespace lockstep::worker
