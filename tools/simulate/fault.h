// The faults of a simulated job, as a list that can be written down, reduced and run again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "base/result.h"
#include "base/time.h"

namespace lockstep::simulate {

enum class FaultKind : std::uint8_t {
  kCrash,        // the worker's process dies and is started again
  kLoseControl,  // its connection to the coordinator ends; it sees that after `length`, ends too
                 // and is started again
  kStop,         // SIGSTOP, SIGCONT after `length`
  kCutLink,      // the data connection of two machines ends
  kPartition,    // no message passes between two machines for `length`
  kDelay,        // messages between two machines take up to `length` longer, for a second
  kStopCoordinator,  // SIGSTOP, SIGCONT after `length`
  kControlOut,       // messages of a machine to the coordinator arrive only after `length`
  kControlIn,        // messages of the coordinator to it arrive only after `length`
  kSlowControl,      // messages either way take up to `length` longer, for a second
  kOneWay,           // messages of a machine to another one arrive only after `length`
  kHangReduction,    // the worker's reduction thread does nothing for `length`
  kHangCompute,      // its compute thread ends no unit for `length`
  kFastClock,        // from here on each second of a machine's clock is `length` shorter,
  kSlowClock,        // or longer
  kFailCheckpoint,   // no checkpoint can be saved for `length`
  kFullDisk,         // nor can anything else be written
  kAway,             // its program says that it is away for at most kSaidAway, and is away for
                     // `length`
  kDieUnseen,  // the worker's process dies and is started again; the coordinator sees the end of
               // its connection only after `length`
  kResume,     // the coordinator and all workers die; after `length` the job is resumed from
               // its last checkpoint, if there is one: else nothing happens
  kCrashCoordinator,  // the coordinator alone dies; after `length` the next one goes on from what
                      // it had noted, with the workers that are there
  kTearJournal,  // its process dies within the next line of the journal, which ends there; after
                 // `length` the next one goes on
  kTearRecords,  // the same of rounds.jsonl
  kFlipJournal,  // the coordinator alone dies, and a bit of the journal changes; the next one that
                 // comes after `length` reads that, and perhaps starts only when it is changed back
  kFlipRecords,  // the same of rounds.jsonl
  kFlipCheckpoint,  // and of the newest checkpoint
  kFlip,  // from here on a machine's gradients are wrong. So is what it says of an audit; the sums
          // stay right, since the checks compare them
};

// A message or event of the coordinator: its beginning in the words of a history, and its number
// among equal ones. A fault that follows it still meets its case when timing changes.
struct Moment {
  std::string words;  // "Commit 26": whole words, from the first one on
  std::uint32_t count = 1;
  bool operator==(const Moment&) const = default;

  bool Matches(std::string_view said) const;
};

// The moment of the commit behind which no round follows.
inline constexpr char kLastCommit[] = "last commit";

struct Fault {
  Duration at{};  // since the job's start, or since the moment
  FaultKind kind = FaultKind::kCrash;
  std::uint32_t machine = 0;
  std::uint32_t other = 0;  // of faults between two
  Duration length{};
  std::optional<Moment> moment = std::nullopt;
  bool operator==(const Fault&) const = default;
};

// An example is "stop@1.250000s:3,for=0.200000s". With a moment:
// "crash@Applied_round_26#2+0.000500s:1", half a millisecond after the second one. Parsing gives
// the same fault back.
std::string ToString(const Fault& fault);
Result<Fault> ParseFault(std::string_view text);

// It concerns what is on disk: the job keeps real files (job_files.h).
bool ConcernsFiles(FaultKind kind);
// The coordinator dies alone.
bool IsTakeover(FaultKind kind);

struct FaultMix {
  bool crashes = false;
  bool stops = false;
  bool links = false;
  bool coordinator = false;
  bool control_links = false;
  bool one_way = false;
  bool hangs = false;
  bool clocks = false;
  bool disk = false;
  bool resume = false;
  bool takeovers = false;
  bool files = false;  // faults of the files, each of which is a takeover
  bool absences = false;
  bool stalls = false;    // compute threads that stall within a unit, some for good; unseen deaths
  bool endless = false;   // one of them, beside the others, lasts for kEndless
  Duration until{};       // no fault begins after this
  Duration mean_pause{};  // between two faults
};

inline constexpr Duration kSaidAway = std::chrono::seconds(3);

// It is longer than any job that continues in spite of it.
inline constexpr Duration kEndless = std::chrono::minutes(10);

// The faults, by ascending time.
std::vector<Fault> DrawFaults(const FaultMix& mix, std::uint32_t machines, RandomStream& random);

}  // namespace lockstep::simulate
