// What goes wrong in a simulated job, as a list that can be written down, cut down and run again.
#pragma once

#include <cstdint>
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
  kPartition,    // nothing gets through between two machines for `length`
  kDelay,        // what two machines say to each other takes up to `length` longer, for a second
  kStopCoordinator,  // SIGSTOP, SIGCONT after `length`
  kControlOut,       // what a machine says to the coordinator arrives only after `length`
  kControlIn,        // what the coordinator says to it
  kSlowControl,      // what either says takes up to `length` longer, for a second
  kOneWay,           // what a machine sends to another one arrives only after `length`
  kHangReduction,    // the worker's reduction thread does nothing for `length`
  kHangCompute,      // its compute thread ends no unit for `length`
  kFastClock,        // from here on each second of a machine's clock is `length` shorter,
  kSlowClock,        // or longer
  kFailCheckpoint,   // no checkpoint can be saved for `length`
  kFullDisk,         // nor anything else be written
  kResume,           // the coordinator and all workers die; after `length` the job is resumed from
                     // its last checkpoint, if there is one: else nothing happens
};

struct Fault {
  Duration at{};  // since the job's start
  FaultKind kind = FaultKind::kCrash;
  std::uint32_t machine = 0;
  std::uint32_t other = 0;  // of those that concern two
  Duration length{};
  bool operator==(const Fault&) const = default;
};

// "crash@1.250s:m3,for=0.2s"; parsing gives the same fault back.
std::string ToString(const Fault& fault);
Result<Fault> ParseFault(std::string_view text);

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
  bool endless = false;   // one of them, beside the others, lasts for kEndless
  Duration until{};       // none begins after this
  Duration mean_pause{};  // between two
};

// Longer than any job that goes on in spite of it.
inline constexpr Duration kEndless = std::chrono::minutes(10);

// By ascending time.
std::vector<Fault> DrawFaults(const FaultMix& mix, std::uint32_t machines, RandomStream& random);

}  // namespace lockstep::simulate
