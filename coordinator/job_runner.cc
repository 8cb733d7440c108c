#include "coordinator/job_runner.h"

#include <utility>
#include <vector>

#include "base/log.h"
#include "coordinator/record_json.h"

namespace lockstep::coordinator {
namespace {

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      break;
  }
  return spdlog::level::err;
}

// What others wait for goes out before files are written.
bool CanWait(const Action& action) {
  return std::holds_alternative<RoundClosed>(action) ||
         std::holds_alternative<EvaluationDone>(action) ||
         std::holds_alternative<CheckpointPiece>(action) ||
         std::holds_alternative<SaveCheckpoint>(action) ||
         std::holds_alternative<DropCheckpoint>(action) ||
         std::holds_alternative<JobFinished>(action);
}

}  // namespace

JobRunner::JobRunner(std::unique_ptr<Coordinator> machine, RunDirectory& directory,
                     CheckpointStore& checkpoints, std::optional<CheckpointStore::Loaded> resume,
                     Ports ports)
    : machine_(std::move(machine)),
      directory_(directory),
      checkpoints_(checkpoints),
      resume_(std::move(resume)),
      ports_(std::move(ports)) {}

void JobRunner::Handle(Event event) {
  if (const auto* received = std::get_if<Received>(&event)) {
    if (const auto* ready = std::get_if<Ready>(&received->message)) checkpoints_.Describe(*ready);
  }
  std::vector<Event> events;
  events.push_back(std::move(event));
  // What an action answers at once is an event of its own.
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (result_) return;
    Actions actions;
    machine_->Step(MonotonicNow(), std::move(events[i]), &actions);
    for (Action& action : actions) {
      if (!CanWait(action)) CarryOut(action, events);
    }
    for (Action& action : actions) {
      if (CanWait(action)) CarryOut(action, events);
    }
  }
}

lockstep::Result<std::string> JobRunner::Ask(Event event) {
  answer_.reset();
  Handle(std::move(event));
  if (!answer_) return Error{ErrorCode::kInvalid, "the job has ended"};
  if (!answer_->accepted) return Error{ErrorCode::kInvalid, answer_->text};
  return answer_->text;
}

void JobRunner::CarryOut(Action& action, std::vector<Event>& follow) {
  if (auto* send = std::get_if<Send>(&action)) {
    for (ConnectionId to : send->to) ports_.send(to, send->message);
  } else if (auto* close = std::get_if<Close>(&action)) {
    ports_.close(close->connection, close->reason);
  } else if (auto* timer = std::get_if<SetTimer>(&action)) {
    ports_.set_timer(timer->at);
  } else if (auto* line = std::get_if<LogLine>(&action)) {
    progress_.Clear();
    spdlog::log(SpdlogLevel(line->level), "{}", line->text);
  } else if (auto* closed = std::get_if<RoundClosed>(&action)) {
    Check(directory_.AppendRound(*closed->record), follow);
  } else if (auto* evaluated = std::get_if<EvaluationDone>(&action)) {
    Check(directory_.AppendEvaluation(evaluated->record), follow);
  } else if (auto* stream = std::get_if<StreamState>(&action)) {
    Stream(stream->to, follow);
  } else if (auto* piece = std::get_if<CheckpointPiece>(&action)) {
    checkpoints_.Add(piece->chunk);
  } else if (auto* save = std::get_if<SaveCheckpoint>(&action)) {
    Check(directory_.Sync(), follow);
    const lockstep::Status saved = checkpoints_.Save(save->round, save->state);
    follow.push_back(
        CheckpointSaved{save->round, saved.ok() ? std::string() : saved.error().message});
  } else if (auto* drop = std::get_if<DropCheckpoint>(&action)) {
    checkpoints_.Drop(drop->round);
  } else if (auto* answer = std::get_if<Answer>(&action)) {
    answer_ = std::move(*answer);
  } else if (auto* finished = std::get_if<JobFinished>(&action)) {
    progress_.Clear();
    result_ = std::move(finished->result);
    std::vector<Event> ignored;
    Check(directory_.WriteTimeline(), ignored);
    Check(directory_.WriteFile("summary.json", SummaryText(*result_)), ignored);
    ports_.finished();
  }
}

void JobRunner::Check(const lockstep::Status& status, std::vector<Event>& follow) {
  if (status.ok() || !io_error_.empty()) return;
  io_error_ = status.error().message;
  progress_.Clear();
  spdlog::error("{}", io_error_);
  follow.push_back(StopRequested{io_error_});
}

void JobRunner::Stream(ConnectionId to, std::vector<Event>& follow) {
  LOCKSTEP_CHECK(resume_.has_value(), "state asked for in a job that does not resume");
  const lockstep::Status read = CheckpointStore::ReadState(*resume_, [&](StateChunk chunk) {
    ports_.send(to, std::make_shared<const ToWorker>(std::move(chunk)));
    return true;
  });
  if (!read.ok()) {
    Check(read, follow);
    return;
  }
  follow.push_back(StateStreamed{to});
}

void JobRunner::ShowProgress() {
  if (!result_) progress_.Show(CurrentStatus());
}

}  // namespace lockstep::coordinator
