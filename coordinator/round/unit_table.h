// The units of a round: which samples each one is, who has it, and whether it is sealed. The one
// place where a unit gets a holder, and so the one that keeps I2.
//
// Decides nothing: RoundWork says who gets what, and is told here when that cannot be.
//
// Invariants:
//   I2  a unit is with one worker, or unassigned, or left out; between two of these it is with
//       nobody, within one call of RoundWork's. Only a unit that somebody holds is sealed.
//   I2  the samples of two units do not overlap: the sampler hands each range out once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/interval_set.h"
#include "base/messages.h"

namespace lockstep::coordinator {

// A unit that nobody has, and who had it.
struct UnassignedUnit {
  UnitIndex unit;
  WorkerId from;
};

class UnitTable {
 public:
  void Reserve(std::size_t units);
  // The number is new. The unit is with nobody.
  void Add(UnitIndex unit, SampleRange range, double cost);

  // --- it changes hands
  void Hold(UnitIndex unit, WorkerId worker);  // from nobody
  void Release(UnitIndex unit);                // to nobody, and it is not sealed any more
  void Unassign(UnassignedUnit unit);          // from nobody
  void LeaveOut(UnassignedUnit unit);          // the same
  std::vector<UnassignedUnit> TakeUnassigned();
  void LeaveUnassignedOut();
  void TakeBackLeftOut();

  // False: it is another range, another worker has it, or it is sealed already.
  bool Seal(const Unit& unit, WorkerId by);
  void Unseal(UnitIndex unit);
  // Carried over from another round.
  void SealHeld(UnitIndex unit);

  bool sealed(UnitIndex unit) const { return units_[unit.value].sealed; }
  SampleRange RangeOf(UnitIndex unit) const { return units_[unit.value].range; }
  double CostOf(UnitIndex unit) const { return units_[unit.value].cost; }
  const std::vector<UnassignedUnit>& unassigned() const { return unassigned_; }
  std::size_t count() const { return count_; }
  std::uint64_t samples() const { return samples_; }
  std::uint64_t samples_left_out() const { return samples_left_out_; }
  // The ranges of units outside `counted`, merged.
  std::vector<SampleRange> RangesLess(const IntervalSet& counted) const;

  // The caller names each unit in each queue; AtEnd checks that each unit is there once.
  class Recount {
   public:
    explicit Recount(const UnitTable& table);
    void InQueueOf(WorkerId worker, UnitIndex unit);
    void AtEnd();

   private:
    const UnitTable& table_;
    std::vector<std::uint32_t> places_;
  };

 private:
  static constexpr std::int64_t kNobody = -1;
  struct Entry {
    SampleRange range;              // empty: there is no such unit
    double cost = 1;                // in usual units
    std::int64_t holder = kNobody;  // slot
    bool sealed = false;
  };
  void CheckIsWithNobody(UnitIndex unit) const;

  std::vector<Entry> units_;  // by UnitIndex
  std::size_t count_ = 0;
  std::uint64_t samples_ = 0;
  std::vector<UnassignedUnit> unassigned_;  // to be given to somebody
  std::vector<UnassignedUnit> left_out_;    // the round does without them
  std::uint64_t samples_left_out_ = 0;      // theirs
};

}  // namespace lockstep::coordinator
