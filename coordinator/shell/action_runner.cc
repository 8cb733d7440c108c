#include "coordinator/shell/action_runner.h"

#include <fmt/format.h>

#include <boost/asio/post.hpp>
#include <utility>
#include <vector>

#include "base/log.h"
#include "coordinator/record/write_json.h"

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

// Actions that others wait for go out before files are written.
bool CanWait(const Action& action) {
  return std::holds_alternative<RoundClosed>(action) ||
         std::holds_alternative<EvaluationDone>(action) ||
         std::holds_alternative<CheckpointPiece>(action) ||
         std::holds_alternative<SaveCheckpoint>(action) ||
         std::holds_alternative<DropCheckpoint>(action) ||
         std::holds_alternative<JobFinished>(action);
}

}  // namespace

ActionRunner::ActionRunner(std::unique_ptr<Coordinator> core, RunDirectory& directory,
                           CheckpointStore& checkpoints, JournalFile& journal,
                           std::optional<Resume> resume, Ports ports)
    : core_(std::move(core)),
      directory_(directory),
      checkpoints_(checkpoints),
      journal_(journal),
      resume_(std::move(resume)),
      ports_(std::move(ports)) {
  if (!resume_) return;
  recorded_ = {resume_->totals, resume_->train_loss, resume_->metrics, resume_->evaluated};
}

ActionRunner::~ActionRunner() { disk_.join(); }

void ActionRunner::Handle(Event event) {
  if (const auto* gone = std::get_if<Disconnected>(&event)) {
    readers_.erase(gone->connection);
  }
  std::vector<Event> events;
  events.push_back(std::move(event));
  // An immediate answer of an action is an event of its own.
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (result_) return;
    Actions actions;
    core_->Step(MonotonicNow(), std::move(events[i]), &actions);
    for (const Action& action : actions) {
      if (const auto* note = std::get_if<Journal>(&action)) {
        const lockstep::Status noted = journal_.Append(*note->entry);
        if (noted.ok()) ports_.follow(msg::Followed::Part::kEntry, journal_.last_line());
        Check(noted, events);
      }
    }
    for (Action& action : actions) {
      if (!CanWait(action)) CarryOut(action, events);
    }
    for (Action& action : actions) {
      if (CanWait(action)) CarryOut(action, events);
    }
  }
}

lockstep::Result<std::string> ActionRunner::Ask(Event event) {
  answer_.reset();
  Handle(std::move(event));
  if (!answer_) return Error{ErrorCode::kInvalid, "the job has ended"};
  if (!answer_->accepted) return Error{ErrorCode::kInvalid, answer_->text};
  return answer_->text;
}

void ActionRunner::CarryOut(Action& action, std::vector<Event>& follow) {
  if (auto* send = std::get_if<Send>(&action)) {
    for (ConnectionId to : send->to) ports_.send(to, send->message);
  } else if (auto* forms = std::get_if<SendForms>(&action)) {
    for (std::size_t i = 0; i < forms->to.size(); ++i) {
      ports_.send(forms->to[i], forms->To(i).message);
    }
  } else if (auto* close = std::get_if<Close>(&action)) {
    readers_.erase(close->connection);
    ports_.close(close->connection, close->reason);
  } else if (auto* timer = std::get_if<SetTimer>(&action)) {
    ports_.set_timer(timer->at);
  } else if (auto* line = std::get_if<LogLine>(&action)) {
    progress_.Clear();
    spdlog::log(SpdlogLevel(line->level), "{}", line->text);
  } else if (auto* cut = std::get_if<CutRecords>(&action)) {
    Cut(cut->state, follow);
  } else if (auto* closed = std::get_if<RoundClosed>(&action)) {
    Note(*closed, follow);
  } else if (auto* evaluated = std::get_if<EvaluationDone>(&action)) {
    Note(*evaluated, follow);
  } else if (auto* stream = std::get_if<StreamState>(&action)) {
    Stream(*stream, follow);
  } else if (auto* piece = std::get_if<CheckpointPiece>(&action)) {
    if (!std::exchange(described_, true)) checkpoints_.Describe(core_->Agreed());
    // In a folder that belongs to another job it would be in the way; Save reports the error.
    if (directory_.Held().ok()) checkpoints_.Add(piece->chunk);
  } else if (auto* save = std::get_if<SaveCheckpoint>(&action)) {
    Save(*save);
  } else if (auto* drop = std::get_if<DropCheckpoint>(&action)) {
    checkpoints_.Drop(drop->round);
  } else if (auto* answer = std::get_if<Answer>(&action)) {
    answer_ = std::move(*answer);
  } else if (auto* abandon = std::get_if<Abandon>(&action)) {
    ports_.abandon(abandon->reason);
  } else if (auto* finished = std::get_if<JobFinished>(&action)) {
    progress_.Clear();
    if (finished->result.outcome == JobOutcome::kHandedOver && io_error_.empty()) {
      result_ = std::move(finished->result);  // the next coordinator writes the summary
    } else {
      WriteResult(std::move(finished->result));
    }
    ports_.finished();
  }
}

void ActionRunner::Cut(const JobState& state, std::vector<Event>& follow) {
  auto kept = directory_.KeepOf(state);
  if (!kept) return Check(kept.error(), follow);
  Check(directory_.CutBack(*kept), follow);
  recorded_ = {state.totals, kept->train_loss, kept->metrics, kept->evaluated};
}

void ActionRunner::Note(const RoundClosed& closed, std::vector<Event>& follow) {
  if (resume_ && !resume_->config.empty()) {
    Check(directory_.WriteFile("config.ini", std::exchange(resume_->config, {})), follow);
  }
  metrics_.Note(*closed.record);
  std::string text = RoundLine(*closed.record);
  const lockstep::Status appended = directory_.AppendRound(text);
  if (appended.ok()) {
    ports_.follow(msg::Followed::Part::kRounds, text + '\n');
    recorded_.totals = closed.totals;
    recorded_.train_loss = closed.record->loss;
    recorded_.metrics = closed.record->metrics;
    DrawTimeline(*closed.record);
  } else {
    ++rounds_without_record_;
  }
  Check(appended, follow);
  recent_rounds_.Note(closed.record->round, std::move(text));
}

// It only shows what rounds.jsonl has, so no job ends for want of it.
void ActionRunner::DrawTimeline(const RoundRecord& record) {
  const lockstep::Status drawn = directory_.AppendTimeline(record);
  if (drawn.ok() || std::exchange(timeline_failed_, true)) return;
  progress_.Clear();
  spdlog::warn("{}; the job goes on, its timeline ends before round {}", drawn.error().message,
               record.round);
}

void ActionRunner::Note(const EvaluationDone& evaluated, std::vector<Event>& follow) {
  const std::string line = EvaluationLine(evaluated.record);
  const lockstep::Status appended = directory_.AppendEvaluation(line);
  if (appended.ok()) {
    ports_.follow(msg::Followed::Part::kEvaluations, line + '\n');
    recorded_.evaluated = evaluated.record;
  } else {
    evaluation_without_record_ = true;
  }
  Check(appended, follow);
}

void ActionRunner::Save(const SaveCheckpoint& save) {
  boost::asio::post(disk_, [this, round = save.round, sync = directory_.Sync(),
                            write = checkpoints_.Save(save.round, save.state)] {
    const lockstep::Status synced = sync();
    const lockstep::Status saved = synced.ok() ? write() : synced;
    ports_.post([this, round, synced, saved] {
      std::vector<Event> events;
      Check(synced, events);
      events.push_back(CheckpointSaved{round, saved.ok() ? std::string() : saved.error().message});
      for (Event& event : events) Handle(std::move(event));
    });
  });
}

void ActionRunner::WriteResult(JobResult result) {
  std::vector<Event> ignored;
  Check(directory_.Sync()(), ignored);
  // An earlier failure is the cause; this one is at most another consequence.
  if (!io_error_.empty() && result.outcome != JobOutcome::kFailed) {
    result.outcome = JobOutcome::kFailed;
    result.reason = io_error_;
  }
  KeepToRecords(result);
  const std::string summary = SummaryText(result);
  const lockstep::Status written = directory_.WriteLast("summary.json", summary);
  // Beside an error before it this one says what else is not there.
  if (!written.ok() && !io_error_.empty() && written.error().message != io_error_) {
    spdlog::error("{}", written.error().message);
  }
  Check(written, ignored);
  ports_.follow(msg::Followed::Part::kEnded, summary);
  result_ = std::move(result);
}

// The summary counts what the records have: the rounds behind them are of no use to a resume, and
// nobody could look them up.
void ActionRunner::KeepToRecords(JobResult& result) const {
  if (evaluation_without_record_) {
    result.test_accuracy.reset();
    result.test_loss.reset();
    if (recorded_.evaluated) {
      result.test_accuracy = recorded_.evaluated->accuracy;
      result.test_loss = recorded_.evaluated->loss;
    }
  }
  if (rounds_without_record_ == 0) return;
  result.totals = recorded_.totals;
  result.train_loss = recorded_.train_loss;
  result.metrics = recorded_.metrics;
  result.reason += fmt::format("; {} closed {} no record", rounds_without_record_,
                               rounds_without_record_ == 1 ? "round has" : "rounds have");
}

void ActionRunner::Check(const lockstep::Status& status, std::vector<Event>& follow) {
  if (status.ok() || !io_error_.empty()) return;
  io_error_ = status.error().message;
  progress_.Clear();
  spdlog::error("{}", io_error_);
  follow.push_back(StopRequested{io_error_});
}

void ActionRunner::Stream(const StreamState& stream, std::vector<Event>& follow) {
  LOCKSTEP_CHECK(resume_ && resume_->checkpoint, "state asked for in a job that has none");
  auto at = readers_.find(stream.to);
  if (at == readers_.end()) {
    auto opened = CheckpointReader::Open(resume_->checkpoint->tensors, resume_->checkpoint->state);
    if (!opened) return Check(opened.error(), follow);
    at = readers_.emplace(stream.to, std::move(*opened)).first;
  }
  CheckpointReader& reader = at->second;
  while (reader.read() < stream.upto) {
    auto chunk = reader.Next(stream.upto - reader.read());
    if (!chunk) return Check(chunk.error(), follow);
    ports_.send(stream.to, std::make_shared<const msg::ToWorker>(*std::move(chunk)));
  }
  if (reader.read() == reader.total()) readers_.erase(at);
}

void ActionRunner::ShowProgress() {
  if (!result_) progress_.Show(CurrentStatus());
}

}  // namespace lockstep::coordinator
