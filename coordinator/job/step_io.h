// The input and output of a step of the coordinator. The shell turns sockets, timers and files into
// events and carries out the actions in their order; simulator and tests do the same without any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/job_config.h"
#include "base/messages.h"
#include "base/result.h"
#include "base/time.h"
#include "coordinator/job/job_state.h"
#include "coordinator/job/records.h"
#include "policies/registry.h"

namespace lockstep::coordinator {

// Names a control connection; given by the shell, never used twice.
using ConnectionId = Id<struct ConnectionIdTag, std::uint64_t>;

// The constants of a job. A run that is resumed has a higher term, so that nobody takes an answer
// to the coordinator before for one to this one.
struct StartParameters {
  JobConfig config;
  std::string config_text;          // the effective config, handed to each worker
  std::uint32_t workers = 1;        // slots
  std::uint32_t begin_workers = 0;  // the job begins with so many; 0: with all
  std::uint32_t BeginWith() const { return begin_workers > 0 ? begin_workers : workers; }
  // More may join than it begins with.
  bool elastic() const { return BeginWith() < workers; }
  // Those of them that compute.
  std::uint32_t ComputingOf(std::uint32_t count) const {
    return count > config.job.spares ? count - config.job.spares : 1;
  }
  Term term{1};
  std::string job_id;
  std::vector<std::byte> job_key;
  Time started;                    // times in records count from here
  std::optional<JobState> resume;  // continue after this; the shell has the tensors (StreamState)
  // Go on from the newest of these that a worker holds, and from `resume` where none is held; by
  // ascending round. The records of their rounds are there.
  std::vector<JournalEntry> journal = {};
  std::string run_id = {};   // see msg::Welcome
  std::string run_dir = {};  // the same
  // A standby has followed it, so it may end before what workers hold.
  bool journal_followed = false;
  // Of a job that is resumed, what its records say last: it stands until there is something newer.
  std::optional<double> train_loss;
  std::vector<Metric> metrics;
  std::optional<EvaluationRecord> evaluated;
  std::uint64_t given_under_way = 4u << 20;  // bytes, see membership/initial_broadcast.h
  policies::PluginMaker plugin = nullptr;    // for policy.name = plugin
  // The settings of the worker's program that are part of `config`; all other programs must have
  // the same. Empty: that of the first worker that says anything.
  std::string program_settings;
};

// --- events

// A connection to the control port: a stranger until its Hello is accepted.
struct Connected {
  ConnectionId connection;
  std::string address;  // for people
};

struct Disconnected {  // not after an action Close
  ConnectionId connection;
  std::string reason;
};

// In the order in which they were sent, for each connection. Decoded, and otherwise unchecked: what
// it says may be wrong or hostile.
struct Received {
  ConnectionId connection;
  msg::FromWorker message;
};

// The time of the last SetTimer has come. However late: after a stop of this process what has
// arrived meanwhile is heard before anybody is judged.
struct TimerFired {};

// SIGINT, SIGTERM. A second one ends the job without waiting for anything.
struct StopRequested {
  std::string reason;
};

// Requests of an operator at run time; one action Answer in the same step answers each. Slow-downs,
// one SPEC in each line, on top of those in force; a line "none" ends all before it.
struct SlowdownRequested {
  std::string lines;
};

// Another policy, as policy.name names it, from the next plan on.
struct PolicyRequested {
  std::string name;
};

// The worker is to leave as soon as no round needs it.
struct DrainRequested {
  WorkerId worker;
};

// Outcome of SaveCheckpoint. `error` empty: it is on disk.
struct CheckpointSaved {
  RoundId round;
  std::string error;
};

// The coordinators that may take over from this one are now these; workers are told.
struct StandbysChanged {
  std::vector<std::string> addresses;  // at most msg::kMaxStandbys
};

using Event =
    std::variant<Connected, Disconnected, Received, TimerFired, StopRequested, SlowdownRequested,
                 PolicyRequested, DrainRequested, CheckpointSaved, StandbysChanged>;

// --- actions

// A message to many is encoded once.
struct Send {
  std::vector<ConnectionId> to;
  std::shared_ptr<const msg::ToWorker> message;
};

// msg::Form to each of many. All of these name all participants, so they are made one at a time: of
// four thousand workers they would take gigabytes together.
struct SendForms {
  std::vector<ConnectionId> to;
  std::shared_ptr<const msg::Form> all;  // connect_to: the participants, as `to`
  // The message to the i-th: the lower id connects to the higher.
  Send To(std::size_t i) const {
    const auto self = all->connect_to.begin() + static_cast<std::ptrdiff_t>(i);
    return {{to[i]},
            std::make_shared<const msg::ToWorker>(msg::Form{all->formation,
                                                            all->transport,
                                                            {self + 1, all->connect_to.end()},
                                                            {all->connect_to.begin(), self}})};
  }
};

// The connection closes after all that was sent to it has been written. There is no Disconnected
// for it, and events of it that are under way are ignored.
struct Close {
  ConnectionId connection;
  std::string reason;
};

struct SetTimer {  // there is one timer: this replaces the one before; kNever: none
  Time at;
};

enum class LogLevel : std::uint8_t { kDebug, kInfo, kWarning, kError };

// A line for people. Golden files hold these texts, so they change only on purpose.
struct LogLine {
  LogLevel level = LogLevel::kInfo;
  std::string text;
};

// Append to rounds.jsonl.
struct RoundClosed {
  std::shared_ptr<const RoundRecord> record;
  Totals totals;  // of the job, this round included
};

// Is to survive this process before anything else of this step is carried out.
struct Journal {
  std::shared_ptr<const JournalEntry> entry;
};

// Of StartParameters::journal nobody holds the newest entry: the rounds from `state.next_round` on
// are computed again, so their records go.
struct CutRecords {
  JobState state;
};

// Append to evaluations.jsonl; of a closed round.
struct EvaluationDone {
  EvaluationRecord record;
};

// Resume: send the checkpoint to this connection as StateChunks, in order, until `upto` bytes of it
// have been sent in all. The first one begins at the checkpoint's first byte.
struct StreamState {
  ConnectionId to;
  std::uint64_t upto = 0;
};

// A piece of the checkpoint after `chunk.round`, in order from its first byte; belongs in a file
// that is not yet valid. A piece with tensor 0 and offset 0 starts a new file.
struct CheckpointPiece {
  msg::StateChunk chunk;
};

// All pieces have come and the round is closed: the shell makes the file valid, then reports
// CheckpointSaved.
struct SaveCheckpoint {
  RoundId round;
  JobState state;
};

// The pieces of this checkpoint will not be completed: remove the file.
struct DropCheckpoint {
  RoundId round;
};

// The answer to an operator's request: in words what follows, or why nothing does.
struct Answer {
  bool accepted = false;
  std::string text;
};

// The last action, of a coordinator that must not lead: it ends without a word to anybody, as if it
// were killed.
struct Abandon {
  std::string reason;
};

// The last action. Write summary.json, let what was sent go out, end.
struct JobFinished {
  JobResult result;
};

using Action = std::variant<Send, SendForms, Close, SetTimer, LogLine, Journal, CutRecords,
                            RoundClosed, EvaluationDone, StreamState, CheckpointPiece,
                            SaveCheckpoint, DropCheckpoint, Answer, Abandon, JobFinished>;
using Actions = std::vector<Action>;

}  // namespace lockstep::coordinator
