// A scripted conversation with the coordinator, written down as it goes: what happens, and below it
// what the coordinator does. Pings and timers are left out.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/core/coordinator.h"

namespace lockstep::coordinator {

struct StoryOptions {
  std::uint32_t workers = 3;
  std::uint32_t begin_workers = 0;  // 0: all of them
  std::string policy = "full";
  std::uint32_t min_workers = 1;
  double quorum_timeout_s = 1800;
  std::uint32_t epochs = 0;
  std::uint32_t checkpoint_every_epochs = 0;
  std::uint64_t rounds = 100;
  std::uint32_t global_batch = 12;
  std::uint32_t units = 6;
  std::uint64_t train_samples = 120;
  std::uint64_t test_samples = 0;
  std::uint32_t evaluation_every_rounds = 0;
  std::string transport = "auto";
  std::string algorithm = "direct";
  std::uint32_t connections = 1;
  bool mapped = true;
  std::string data_digest = {};
  std::optional<JobState> resume = std::nullopt;
  std::vector<JournalEntry> journal = {};  // of the coordinator before; this one's term is 2 then
  bool own_parameters = false;
  bool journal_followed = false;                         // by a standby, which this one was
  std::optional<std::uint32_t> replicas = std::nullopt;  // optimizer.replicas
};

class Story {
 public:
  Story(std::string title, StoryOptions options);

  // --- telling
  void Say(const std::string& line);  // a line of the teller
  void Quiet(bool quiet) { quiet_ = quiet; }
  void Wait(double seconds);   // on the timer's events, one by one
  void Stand(double seconds);  // the coordinator is stopped
  void Interrupt();
  void Ask(Event event, const std::string& what);  // an operator
  void Connect(std::uint32_t worker);
  void Die(std::uint32_t worker);
  void From(std::uint32_t worker, msg::FromWorker message);
  // Its state after the round is all zeros, or another one.
  void TellState(std::uint32_t worker, std::uint64_t round, bool another = false);
  void Upload(std::uint32_t worker, std::uint64_t round, bool another = false);
  void Saved(std::uint64_t round, const std::string& error = {});

  // --- in the worker's words; what the coordinator has told each is known
  void Hello(std::uint32_t worker, std::optional<std::uint32_t> wanted = std::nullopt);
  void Ready(std::uint32_t worker, bool ucx = true, const std::string& slowdowns = "");
  void ReadyWith(std::uint32_t worker, const HeldParameters& held,
                 std::vector<std::uint64_t> shards = {});
  void Reached(std::uint32_t worker);  // all it was told to
  // All it has to do, or the first `units` of it; each took `unit_ms`.
  void Sealed(std::uint32_t worker, std::int64_t unit_ms = 0, std::size_t units = ~std::size_t{0});
  // The same, to be said later.
  msg::Sealed Seal(std::uint32_t worker, std::int64_t unit_ms = 0,
                   std::size_t units = ~std::size_t{0});
  void Receipts(std::uint32_t owner, const std::vector<std::uint32_t>& contributors);
  void Published(std::uint32_t worker);
  void Applied(std::uint32_t worker, std::uint64_t digest = 0xd);
  void NotReached(std::uint32_t worker);  // nobody that it was told to
  // From now on, whenever time passes, it lives and does not reach whom it is told to.
  void NeverReaches(std::uint32_t worker) { state_[worker].never_reaches = true; }
  void Pong(std::uint32_t worker);
  // The last ping that anybody was sent; told, unlike Pong, as it may decide something. `run`: what
  // the worker's compute thread is in.
  void AnswerPing(std::uint32_t worker, const msg::RunInHand& run = {});
  // All of them.
  void Begin();  // until training
  void AllPublishAndApply(const std::vector<std::uint32_t>& workers);
  // So many rounds, untold, in which all do their part. After four the coordinator knows how long
  // an owner usually takes, and has others stand in for one that takes longer.
  void OrdinaryRounds(int rounds);

  bool IsConnected(std::uint32_t worker) const {
    const auto found = state_.find(worker);
    return found != state_.end() && found->second.connection.value != 0;
  }
  const msg::Commit& Commit(std::uint32_t worker) const { return *state_.at(worker).commit; }
  bool HasCommit(std::uint32_t worker) const { return state_.at(worker).commit.has_value(); }
  bool finished() const { return coordinator_->finished(); }
  JobStatus Status() const { return coordinator_->Status(now_); }
  // Of the last order of its kind that it got.
  std::uint32_t HoldOrder(std::uint32_t worker) const { return state_.at(worker).hold_order; }
  std::uint32_t CopyOrder(std::uint32_t worker) const { return state_.at(worker).copy_order; }
  // Of its Welcome.
  const std::optional<HeldParameters>& Decided(std::uint32_t worker) const {
    return state_.at(worker).decided;
  }
  MemberId Id(std::uint32_t worker) const { return state_.at(worker).self; }
  const msg::Ready& ReadyOf(std::uint32_t worker) { return state_[worker].ready; }
  const std::string& text() const { return text_; }
  // Of the round that was closed last; null: none was.
  const RoundRecord* record() const { return record_.get(); }
  // What the coordinator has noted so far.
  const std::vector<JournalEntry>& journal() const { return journal_; }
  Time now() const { return now_; }

 private:
  struct Worker {
    ConnectionId connection;
    MemberId self;
    std::optional<HeldParameters> decided;
    msg::Ready ready;
    msg::Form form;
    bool never_reaches = false;
    bool to_answer = false;   // the form
    RoundId round;            // whose units these are
    Attempt plan;             // of it
    std::vector<Unit> queue;  // not yet sealed
    std::uint8_t parts = 0;
    std::uint32_t map_version = 0;
    std::optional<msg::Commit> commit;
    std::uint32_t fence_order = 0;  // of the last FenceRound, FenceAttempt and CatchUp
    std::uint32_t hold_order = 0;
    std::uint32_t copy_order = 0;
  };
  void Step(Event event, const std::string& line);
  void Note(const Action& action);
  void AnswerAll();
  void Learn(std::uint32_t worker, const msg::ToWorker& message);
  void TakePlan(Worker* worker, const Plan& plan);
  std::string Receivers(const std::vector<ConnectionId>& to) const;

  StoryOptions options_;
  std::unique_ptr<Coordinator> coordinator_;
  Time now_;
  Time timer_ = kNever;
  std::uint64_t connections_ = 0;
  std::uint64_t ping_ = 0;                 // the number of the last one
  std::map<std::uint32_t, Worker> state_;  // by slot
  bool quiet_ = false;
  std::string text_;
  std::shared_ptr<const RoundRecord> record_;
  std::vector<JournalEntry> journal_;
};

}  // namespace lockstep::coordinator
