// The receipts of owners in one round, under the current map. They are counted so that an event
// costs O(1) and a new map O(members^2 / 64). A part is delivered when every owner is its
// contributor, is mapped with the contributor, or has sent a receipt under this map version. Where
// sums are passed on after the commit (base/routes.h), a part is delivered when it is sealed.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "coordinator/job/bit_matrix.h"
#include "coordinator/job/members.h"

namespace lockstep::coordinator {

class Delivery {
 public:
  explicit Delivery(std::uint32_t slots = 0);

  // Receipts of older versions are void.
  void SetOwners(const OwnerMap& map, const Members& members);

  // A new contributor in the round: how it is mapped may be news, and what was received of the one
  // that had its slot before counts no more.
  void AddContributor(WorkerId contributor, const Members& members);

  // Takes a receipt of an owner of the current version. True: the part has just become delivered.
  bool AddReceipt(WorkerId owner, WorkerId contributor, PartIndex part);
  // A link between the two was made again, and since then they read each other's memory: neither
  // sends receipts any more. True: a part may have become delivered.
  bool NoteMapped(WorkerId owner, WorkerId contributor);
  bool Delivered(WorkerId contributor, PartIndex part) const {
    return missing_[Key(contributor, part)] == 0;
  }
  // Needed, and not there.
  bool Lacks(WorkerId owner, WorkerId contributor, PartIndex part) const {
    return Needs(owner, contributor) && !receipts_.Test(owner.value, Key(contributor, part));
  }
  std::vector<WorkerId> Missing(WorkerId contributor, PartIndex part) const;
  bool IsOwner(WorkerId worker) const { return owners_.Test(0, worker.value); }

 private:
  // Invariants: missing_[c, p] is the number of owners that need the part and have sent no receipt,
  // so that delivered means 0. No owner needs its own part, nor one of a contributor that it has
  // mapped.
  static std::size_t Key(WorkerId contributor, PartIndex part) {
    return std::size_t{contributor.value} * kMaxParts + part.value;
  }
  bool Needs(WorkerId owner, WorkerId contributor) const {
    return IsOwner(owner) && needs_.Test(contributor.value, owner.value);
  }

  void CountMissing(std::uint32_t contributor, const Members& members);

  std::uint32_t slots_;
  bool direct_ = true;                  // else nobody takes parts before the commit
  BitMatrix owners_;                    // one row
  BitMatrix needs_;                     // [contributor][owner]: a receipt is needed
  BitMatrix receipts_;                  // [owner][key]
  std::vector<std::uint32_t> missing_;  // by key: receipts that are to come
};

}  // namespace lockstep::coordinator
