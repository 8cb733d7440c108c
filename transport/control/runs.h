// Internal to the codec: converts lists of members and units into runs, the form in which
// lockstep.proto sends them, and back.
#pragma once

#include <cstdint>
#include <vector>

#include "base/messages.h"
#include "transport/control/wire.h"

namespace lockstep::transport::control {

// A range that is cut must be small enough that its product with a number of units does not
// overflow.
inline constexpr std::uint64_t kMaxCutSamples = std::uint64_t{1} << 40;
static_assert(kMaxUnits <= std::uint64_t{1} << 20);

// Members whose numbers follow each other.
struct MemberRun {
  MemberId first;
  std::uint32_t count = 1;  // > 0
  bool operator==(const MemberRun&) const = default;
};

// Runs of members that have all other fields in common.
struct OwnerRun {
  MemberRun members;
  std::uint32_t weight = 0;
  bool operator==(const OwnerRun&) const = default;
};
struct PartRun {
  MemberRun members;
  PartIndex part;
  float weight = 0;
  std::uint64_t samples = 0;
  bool operator==(const PartRun&) const = default;
};
struct ReceivedRun {
  MemberRun members;
  PartIndex part;
  bool operator==(const ReceivedRun&) const = default;
};
struct AssignmentRun {
  MemberRun members;
  std::uint32_t units = 0;  // of each
  RunLimit runs;
  bool operator==(const AssignmentRun&) const = default;
};

// Units whose indices follow each other, cut out of one range.
struct UnitRun {
  UnitIndex first;
  std::uint32_t count = 0;  // > 0
  SampleRange range;
};

// The assignments of a plan: the number of units of each member, and the units of all, in the same
// order.
struct AssignmentRuns {
  std::vector<AssignmentRun> members;
  std::vector<UnitRun> units;
};

std::vector<MemberRun> ToRuns(const std::vector<MemberId>& list);
std::vector<OwnerRun> ToRuns(const std::vector<OwnerShare>& list);
std::vector<PartRun> ToRuns(const std::vector<CommittedPart>& list);
std::vector<ReceivedRun> ToRuns(const std::vector<ReceivedPart>& list);
std::vector<UnitRun> ToRuns(const std::vector<Unit>& list);
AssignmentRuns ToRuns(const std::vector<Assignment>& list);

// The result is bounded, however few bytes the runs came in. It is also in order: by ascending
// worker, each once; parts by worker, then part.
std::vector<MemberId> FromRuns(const std::vector<MemberRun>& runs, Checks& checks);
std::vector<OwnerShare> FromRuns(const std::vector<OwnerRun>& runs, Checks& checks);
std::vector<CommittedPart> FromRuns(const std::vector<PartRun>& runs, Checks& checks);
std::vector<ReceivedPart> FromRuns(const std::vector<ReceivedRun>& runs, Checks& checks);
std::vector<Unit> FromRuns(const std::vector<UnitRun>& runs, Checks& checks);
std::vector<Assignment> FromRuns(const AssignmentRuns& runs, Checks& checks);

}  // namespace lockstep::transport::control
