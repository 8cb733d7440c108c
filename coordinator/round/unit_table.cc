#include "coordinator/round/unit_table.h"

#include <utility>

#include "base/check.h"

namespace lockstep::coordinator {

void UnitTable::Reserve(std::size_t units) { units_.reserve(units); }

// Numbers of units are dense but for relaxed rounds: there the numbers of work that is carried on
// stay, and new units fill the gaps.
void UnitTable::Add(UnitIndex unit, SampleRange range, double cost) {
  if (unit.value >= units_.size()) units_.resize(unit.value + 1);
  LOCKSTEP_CHECK(range.size() > 0 && units_[unit.value].range.size() == 0,
                 "I2: the number of unit {} is taken, or it has no samples", unit);
  units_[unit.value].range = range;
  units_[unit.value].cost = cost;
  ++count_;
  samples_ += range.size();
}

// A sealed unit counts for whoever sealed it: to compute it once more would count it twice.
void UnitTable::CheckIsWithNobody(UnitIndex unit) const {
  LOCKSTEP_CHECK(unit.value < units_.size() && units_[unit.value].range.size() > 0,
                 "I2: there is no unit {}", unit);
  LOCKSTEP_CHECK(units_[unit.value].holder == kNobody && !units_[unit.value].sealed,
                 "I2: unit {} is given away while worker {} has it", unit,
                 units_[unit.value].holder);
}

// From here until Release no other worker can get it: the one place that keeps I2 while work moves.
void UnitTable::Hold(UnitIndex unit, WorkerId worker) {
  CheckIsWithNobody(unit);
  units_[unit.value].holder = worker.value;
}

// A sealed one may be released when its contribution is void: then it is computed again.
void UnitTable::Release(UnitIndex unit) {
  LOCKSTEP_CHECK(units_[unit.value].holder != kNobody, "I2: unit {} is taken from nobody", unit);
  units_[unit.value].holder = kNobody;
  units_[unit.value].sealed = false;
}

void UnitTable::Unassign(UnassignedUnit unit) {
  CheckIsWithNobody(unit.unit);
  unassigned_.push_back(unit);
}

void UnitTable::LeaveOut(UnassignedUnit unit) {
  CheckIsWithNobody(unit.unit);
  left_out_.push_back(unit);
  samples_left_out_ += RangeOf(unit.unit).size();
}

std::vector<UnassignedUnit> UnitTable::TakeUnassigned() { return std::exchange(unassigned_, {}); }

// They are of the round as before, and go back to the sampler when it is committed.
void UnitTable::LeaveUnassignedOut() {
  for (const UnassignedUnit& unit : unassigned_) LeaveOut(unit);
  unassigned_.clear();
}

// Nothing is given up for good while the round is open.
void UnitTable::TakeBackLeftOut() {
  unassigned_.insert(unassigned_.end(), left_out_.begin(), left_out_.end());
  left_out_.clear();
  samples_left_out_ = 0;
}

// A worker's report is accepted only where it is true of this table: its message may be wrong, or
// older than a revoke that it has not seen.
bool UnitTable::Seal(const Unit& unit, WorkerId by) {
  if (unit.index.value >= units_.size()) return false;
  Entry& entry = units_[unit.index.value];
  if (unit.range != entry.range || entry.holder != by.value || entry.sealed) return false;
  entry.sealed = true;
  return true;
}

// A message is taken whole or not at all: the first units of a wrong one were sealed already.
void UnitTable::Unseal(UnitIndex unit) {
  LOCKSTEP_CHECK(units_[unit.value].sealed, "I2: unit {} is not sealed", unit);
  units_[unit.value].sealed = false;
}

// Carried work keeps its seals of the previous round.
void UnitTable::SealHeld(UnitIndex unit) {
  LOCKSTEP_CHECK(units_[unit.value].holder != kNobody && !units_[unit.value].sealed,
                 "I2: unit {} is sealed by nobody, or twice", unit);
  units_[unit.value].sealed = true;
}

// A unit counts whole or not at all, so one that is touched by what is counted is in it.
std::vector<SampleRange> UnitTable::RangesLess(const IntervalSet& counted) const {
  IntervalSet left;
  for (const Entry& unit : units_) {
    if (unit.range.size() > 0 && !counted.Intersects(unit.range)) {
      LOCKSTEP_CHECK(left.Add(unit.range), "I2: a range is in two units");
    }
  }
  return left.Ranges();
}

// The places of a unit besides a worker's queue.
UnitTable::Recount::Recount(const UnitTable& table) : table_(table), places_(table.units_.size()) {
  for (const std::vector<UnassignedUnit>* units : {&table.unassigned_, &table.left_out_}) {
    for (const UnassignedUnit& unassigned : *units) {
      ++places_[unassigned.unit.value];
      table.CheckIsWithNobody(unassigned.unit);
    }
  }
}

void UnitTable::Recount::InQueueOf(WorkerId worker, UnitIndex unit) {
  ++places_[unit.value];
  LOCKSTEP_CHECK(table_.units_[unit.value].holder == worker.value,
                 "I2: unit {} is in the queue of worker {} and held by {}", unit, worker,
                 table_.units_[unit.value].holder);
}

// Exactly one: no unit is lost, and none is with two.
void UnitTable::Recount::AtEnd() {
  std::uint64_t left_out = 0;
  for (const UnassignedUnit& unit : table_.left_out_) left_out += table_.RangeOf(unit.unit).size();
  LOCKSTEP_CHECK(left_out == table_.samples_left_out_, "{} samples are left out, not {}", left_out,
                 table_.samples_left_out_);
  for (std::size_t unit = 0; unit < places_.size(); ++unit) {
    const bool exists = table_.units_[unit].range.size() > 0;
    LOCKSTEP_CHECK(places_[unit] == (exists ? 1u : 0u), "I2: unit {} is in {} places", unit,
                   places_[unit]);
  }
}

}  // namespace lockstep::coordinator
