#include "coordinator/round/delivery.h"

#include "base/check.h"

namespace lockstep::coordinator {

// All of it at once, for the largest round there can be: no event allocates.
Delivery::Delivery(std::uint32_t slots)
    : slots_(slots),
      owners_(1, slots),
      needs_(slots, slots),
      receipts_(slots, std::size_t{slots} * kMaxParts),
      missing_(std::size_t{slots} * kMaxParts) {}

// A word of 64 owners at a time: a round of a thousand workers has a new map within microseconds.
void Delivery::SetOwners(const OwnerMap& map, const Members& members) {
  LOCKSTEP_CHECK(!map.owners.empty(), "owner map {} has no owners", map.version);
  direct_ = map.direct();
  owners_.Clear();
  receipts_.Clear();
  for (const OwnerShare& share : map.owners) {
    LOCKSTEP_CHECK(share.owner.worker.value < slots_, "I7: owner {} of {} slots",
                   share.owner.worker, slots_);
    owners_.Set(0, share.owner.worker.value);
  }
  for (std::uint32_t c = 0; c < slots_; ++c) CountMissing(c, members);
}

// The contributor itself and owners that have mapped its arena send no receipts: they read the part
// where it lies, so sealed means delivered.
void Delivery::CountMissing(std::uint32_t contributor, const Members& members) {
  std::uint32_t missing = 0;
  for (std::size_t i = 0; i < owners_.words(); ++i) {
    std::uint64_t needed = owners_.Word(0, i) & ~members.mapped().Word(contributor, i);
    if (!direct_) needed = 0;
    if (contributor / 64 == i) needed &= ~(std::uint64_t{1} << (contributor % 64));
    needs_.SetWord(contributor, i, needed);
    missing += static_cast<std::uint32_t>(std::popcount(needed));
  }
  for (std::uint8_t part = 0; part < kMaxParts; ++part) {
    missing_[Key(WorkerId(contributor), PartIndex(part))] = missing;
  }
}

// Receipts of the incarnation that had the slot before are void. Other contributors keep theirs.
void Delivery::AddContributor(WorkerId contributor, const Members& members) {
  LOCKSTEP_CHECK(contributor.value < slots_, "I7: contributor {} of {}", contributor, slots_);
  for (std::uint32_t owner = 0; owner < slots_; ++owner) {
    for (std::uint8_t part = 0; part < kMaxParts; ++part) {
      receipts_.Set(owner, Key(contributor, PartIndex(part)), false);
    }
  }
  CountMissing(contributor.value, members);
}

// Twice the same receipt counts once.
bool Delivery::AddReceipt(WorkerId owner, WorkerId contributor, PartIndex part) {
  if (!Needs(owner, contributor)) return false;
  const std::size_t key = Key(contributor, part);
  if (receipts_.Set(owner.value, key)) return false;
  LOCKSTEP_CHECK(missing_[key] > 0, "a receipt that nobody needs is counted");
  return --missing_[key] == 0;
}

bool Delivery::NoteMapped(WorkerId owner, WorkerId contributor) {
  if (!Needs(owner, contributor)) return false;
  needs_.Set(contributor.value, owner.value, false);
  for (std::uint8_t part = 0; part < kMaxParts; ++part) {
    const std::size_t key = Key(contributor, PartIndex(part));
    if (receipts_.Test(owner.value, key)) continue;
    LOCKSTEP_CHECK(missing_[key] > 0, "a receipt that was needed is not counted");
    --missing_[key];
  }
  return true;
}

// Used for blame and texts; whether a part is delivered is known without a pass over the owners.
std::vector<WorkerId> Delivery::Missing(WorkerId contributor, PartIndex part) const {
  std::vector<WorkerId> owners;
  for (std::uint32_t o = 0; o < slots_; ++o) {
    if (Lacks(WorkerId(o), contributor, part)) owners.push_back(WorkerId(o));
  }
  return owners;
}

}  // namespace lockstep::coordinator
