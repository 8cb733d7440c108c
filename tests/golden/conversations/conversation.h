// A whole job as a story: the real coordinator, real workers' cores and real floats on virtual
// time, and all that they say to each other and do, in order, a line each. A test plays until
// something is said, does something to a worker or a link, and goes on; nothing is random.
//
//   coordinator -> 0 1: ...     it says this to workers 0 and 1
//   0 -> coordinator: ...       worker 0 says
//   0 -> 1: ...                 worker 0 says to its peer
//   1 <- 0: fetches ...         worker 1 asks worker 0 for bytes, and gets them
//   0: ...                      worker 0 does something
//   *** ...                     the test does something
//
// A line stands where the thing is said; it is heard 0.1 ms later. Pings, heartbeats, timers and
// the formation of the connections are left out. All results are held against Truth and all that is
// said against the Checker, as in the simulator: a story that breaks an invariant fails.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/simulate/checker.h"
#include "tools/simulate/real_numbers.h"
#include "tools/simulate/recording.h"
#include "tools/simulate/step_worker.h"
#include "tools/simulate/truth.h"

namespace lockstep::simulate {

struct ConversationOptions {
  std::uint32_t workers = 2;
  std::string policy = "full";
  bool mapped = false;  // all workers on one host, which read each other's memory
  std::uint64_t rounds = 3;
  std::uint32_t units = 4;  // of four samples each, 10 ms long
  std::uint32_t checkpoint_every = 0;
  std::uint64_t test_samples = 0;
  std::uint32_t min_workers = 1;
  double timeout_s = 2;  // liveness.timeout
};

class Conversation {
 public:
  // Plays up to the first plan, without telling it.
  Conversation(std::string title, ConversationOptions options);

  // A sentence of the test's own.
  void Say(const std::string& line);
  // What is played while it is quiet is not told.
  void Quiet(bool quiet) { quiet_ = quiet; }
  // Until a line has been told that contains this; that it never comes fails the test.
  void Until(const std::string& words);
  void Play(Duration time);
  void PlayToTheEnd();

  // Its process dies, and is started again some time after.
  void Kill(std::uint32_t worker);
  // SIGSTOP, and SIGCONT after that time.
  void Stop(std::uint32_t worker, Duration time);
  // What one sends the other over the data plane arrives only after that time.
  void Hold(std::uint32_t from, std::uint32_t to, Duration time);
  // From its next unit on.
  void Slow(std::uint32_t worker, int factor) { compute_.factors[worker] = factor; }
  // Its reduction thread does nothing.
  void HangReduction(std::uint32_t worker, Duration time);

  // What was told, and the first breach of an invariant, if there was one.
  const std::string& text() const { return text_; }

 private:
  struct FixedNetwork final : DataNetwork {
    Time Arrival(Time now, std::uint32_t from, std::uint32_t to, std::uint64_t bytes) override;
    Duration Pass(std::uint64_t) override { return std::chrono::microseconds(50); }
    std::map<std::pair<std::uint32_t, std::uint32_t>, Time> held_until;
  };
  struct FixedCompute final : ComputeModel {
    Duration UnitTime(WorkerId worker, Time now, RoundId round, Epoch epoch, const Unit& unit,
                      std::uint32_t run, RandomStream& random) override;
    std::map<std::uint32_t, int> factors;
  };

  bool RunNext();
  void Inject(FaultKind kind, std::uint32_t worker, Duration time);
  void Tell(const std::string& line);
  std::string Names(const std::vector<coordinator::ConnectionId>& connections) const;
  void Attach();
  void OnCoordinatorEvent(const coordinator::Event& event);
  void OnSend(const coordinator::Send& send);
  void OnWorkerEvent(const MemberId& worker, const worker::Event& event);
  void OnWorkerAction(const MemberId& worker, const worker::Action& action);

  const ConversationOptions options_;
  FixedNetwork network_;
  FixedCompute compute_;
  RealNumbers::Counts counts_;
  Truth truth_;
  Cluster cluster_;
  Simulation simulation_;
  Checker checker_;
  std::map<coordinator::ConnectionId, MemberId> members_;
  bool quiet_ = true;
  bool failed_ = false;
  std::string told_;  // the last event's lines, also while it is quiet
  std::string clock_;
  std::string text_;
};

}  // namespace lockstep::simulate
