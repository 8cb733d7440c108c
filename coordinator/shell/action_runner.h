// Carries out what the coordinator's core decides: messages out, run directory, checkpoints, timer.
// It runs on the control thread, which also brings the events; another one writes checkpoints.
#pragma once

#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/messages.h"
#include "base/result.h"
#include "base/time.h"
#include "coordinator/checkpoint/checkpoint_reader.h"
#include "coordinator/checkpoint/checkpoint_store.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/journal/journal.h"
#include "coordinator/record/metrics.h"
#include "coordinator/record/recent_rounds.h"
#include "coordinator/record/run_directory.h"
#include "coordinator/shell/progress_line.h"

namespace lockstep::coordinator {

class ActionRunner {
 public:
  struct Ports {
    std::function<void(ConnectionId, const std::shared_ptr<const msg::ToWorker>&)> send;
    std::function<void(ConnectionId, const std::string& reason)> close;  // after what was sent
    std::function<void(Time)> set_timer;                                 // kNever: none
    // A standby gets this. After an entry of the journal nothing is sent until it has it.
    std::function<void(msg::Followed::Part, const std::string& text)> follow;
    std::function<void(const std::string& reason)> abandon;  // see the action Abandon
    std::function<void()> finished;
    // Runs the task on the control thread, later; from any thread. Not after the server has ended.
    std::function<void(std::function<void()>)> post;
  };

  struct Resume {
    // Null: there is none, and workers hold what the job goes on from.
    std::optional<CheckpointStore::Loaded> checkpoint;
    Totals totals;  // that the records have
    // For config.ini, with the first round: had the workers refused it, the job would go on from
    // the one that is there.
    std::string config;
    // The newest values in the records that are kept.
    std::optional<double> train_loss = std::nullopt;
    std::vector<Metric> metrics = {};
    std::optional<EvaluationRecord> evaluated = std::nullopt;
  };

  ActionRunner(std::unique_ptr<Coordinator> core, RunDirectory& directory,
               CheckpointStore& checkpoints, JournalFile& journal, std::optional<Resume> resume,
               Ports ports);

  ~ActionRunner();  // waits for the disk

  // An event, and all that follows from it.
  void Handle(Event event);
  // Carries out an operator's request and returns the answer in words.
  lockstep::Result<std::string> Ask(Event event);
  void ShowProgress();
  JobStatus CurrentStatus() const { return core_->Status(MonotonicNow()); }
  std::string MetricsText() const { return metrics_.Text(CurrentStatus(), core_->MeasuredPaths()); }
  std::string RecentRoundsText(std::int64_t after) const { return recent_rounds_.Text(after); }

  // Valid after `finished`.
  const JobResult& result() const { return *result_; }
  // A file of the run directory could not be written; the job is stopped then.
  const std::string& io_error() const { return io_error_; }
  Duration progress_interval() const { return progress_.interval(); }

 private:
  void CarryOut(Action& action, std::vector<Event>& follow);
  void Check(const lockstep::Status& status, std::vector<Event>& follow);
  void Cut(const JobState& state, std::vector<Event>& follow);
  void Note(const RoundClosed& closed, std::vector<Event>& follow);
  void Note(const EvaluationDone& evaluated, std::vector<Event>& follow);
  void DrawTimeline(const RoundRecord& record);
  void KeepToRecords(JobResult& result) const;
  void Save(const SaveCheckpoint& save);
  // The last thing that is written, also when the disk is full.
  void WriteResult(JobResult result);
  // More of the checkpoint to this worker, at its pace (StateStreams).
  void Stream(const StreamState& stream, std::vector<Event>& follow);

  std::unique_ptr<Coordinator> core_;
  RunDirectory& directory_;
  CheckpointStore& checkpoints_;
  JournalFile& journal_;
  std::optional<Resume> resume_;
  std::map<ConnectionId, CheckpointReader> readers_;  // of those that it is being sent to
  Ports ports_;
  ProgressLine progress_;
  JobMetrics metrics_;
  RecentRounds recent_rounds_;
  // The totals of the lines in rounds.jsonl and evaluations.jsonl. The core goes on for some rounds
  // after a line could not be written.
  struct Recorded {
    Totals totals;
    std::optional<double> train_loss;
    std::vector<Metric> metrics;
    std::optional<EvaluationRecord> evaluated;
  };
  Recorded recorded_;
  std::uint64_t rounds_without_record_ = 0;
  bool evaluation_without_record_ = false;
  bool timeline_failed_ = false;
  std::optional<Answer> answer_;
  std::optional<JobResult> result_;
  bool described_ = false;  // checkpoints_ knows what its tensors are called
  std::string io_error_;
  boost::asio::thread_pool disk_{1};  // what may take longer than a heartbeat
};

}  // namespace lockstep::coordinator
