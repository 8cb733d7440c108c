// Carries out what the coordinator's machine decides: messages out, run directory, checkpoints,
// timer. One thread, the control thread, which also brings the events.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/messages.h"
#include "base/result.h"
#include "base/time.h"
#include "coordinator/checkpoint_store.h"
#include "coordinator/coordinator.h"
#include "coordinator/progress_line.h"
#include "coordinator/run_directory.h"

namespace lockstep::coordinator {

class JobRunner {
 public:
  struct Ports {
    std::function<void(ConnectionId, const std::shared_ptr<const ToWorker>&)> send;
    std::function<void(ConnectionId, const std::string& reason)> close;  // after what was sent
    std::function<void(Time)> set_timer;                                 // kNever: none
    std::function<void()> finished;
  };

  JobRunner(std::unique_ptr<Coordinator> machine, RunDirectory& directory,
            CheckpointStore& checkpoints, std::optional<CheckpointStore::Loaded> resume,
            Ports ports);

  // An event, and all that follows from it.
  void Handle(Event event);
  // What an operator asks for; the answer in words.
  lockstep::Result<std::string> Ask(Event event);
  void ShowProgress();
  JobStatus CurrentStatus() const { return machine_->Status(MonotonicNow()); }

  // After `finished`.
  const JobResult& result() const { return *result_; }
  // A file of the run directory could not be written; the job is stopped then.
  const std::string& io_error() const { return io_error_; }
  Duration progress_interval() const { return progress_.interval(); }

 private:
  void CarryOut(Action& action, std::vector<Event>& follow);
  void Check(const lockstep::Status& status, std::vector<Event>& follow);
  void Stream(ConnectionId to, std::vector<Event>& follow);

  std::unique_ptr<Coordinator> machine_;
  RunDirectory& directory_;
  CheckpointStore& checkpoints_;
  std::optional<CheckpointStore::Loaded> resume_;
  Ports ports_;
  ProgressLine progress_;
  std::optional<Answer> answer_;
  std::optional<JobResult> result_;
  std::string io_error_;
};

}  // namespace lockstep::coordinator
