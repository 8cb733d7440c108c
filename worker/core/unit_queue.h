// The units of one worker in one round, shared by two threads: the compute thread takes from the
// head, the data thread owns the tail (appends, revokes). One atomic word decides, so a revoke
// is answered at once also in the middle of a slow unit, and each unit is either computed or given
// back, never both.
//
// Runs. A take is of consecutive units, computed together as one batch. It has as many as the limit
// of the queue's runs lets it (NextRun), and no more than this worker's own bound. The limit is the
// plan's and counts units; the bound counts their samples, of whatever plan or appended later. It
// may count costs too: of a batch that is padded, so the samples times the dearest one's cost.
//
// Audits. Before the first unit there may be one that counts for nothing: it is taken alone, and
// belongs to no part and no position. Or the first unit itself is audited: it is a run of its own.
//
// Parts. Units are added into the gradient sum of the current part. The thread that computes the
// last units of the queue begins to seal the part as late as it can. Until then units that are
// appended belong to the part that is open, from then on to the next one. Behind the last part
// nothing can be appended.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/messages.h"

namespace lockstep::worker {

// Why not a mutex: the data thread must answer a revoke whatever the compute thread does. It must
// do so also when that thread was stopped by its operating system in the midst of a take. With one
// word either side's exchange succeeds or sees the other's; nobody waits for anybody.
//
// Invariants, of the word: head <= tail <= capacity; head and part only grow between two Resets;
// tail falls only by a revoke, and never below head. So a unit that was taken is never given back
// (I2). Each Reset gives the word another turn. So the limit and the units of its own work decide
// how long a run is, since a take that a Reset overtakes fails and is tried again.
class UnitQueue {
 public:
  enum class TakeKind : std::uint8_t {
    kNone,   // nothing to do now: the queue is empty and sealed as far as it goes, or void
    kRun,    // compute the units at `position`, `count` of them, and add them to `part`
    kAudit,  // compute the audited unit, and tell what came out; nothing is added anywhere
    kSeal,   // seal `part` as it is: what would have been its last units was revoked
  };
  struct Take {
    TakeKind kind = TakeKind::kNone;
    std::uint32_t work = 0;  // as given to Reset
    PartIndex part;
    std::uint32_t position = 0;
    std::uint32_t count = 0;
    bool audited = false;  // kRun: tell what came out, before anything is added to it
  };
  // Positions, from 0, of at most `capacity` units given to this worker in a round. `most_cost`: of
  // a run; 0: no bound.
  explicit UnitQueue(std::uint32_t capacity, const RunBound& bound = {}, double most_cost = 0)
      : capacity_(capacity),
        bound_(bound),
        most_cost_(most_cost),
        chunks_((capacity + kChunk - 1) / kChunk) {
    LOCKSTEP_CHECK(capacity > 0 && capacity <= kMaxCapacity, "capacity {}", capacity);
    LOCKSTEP_CHECK(most_cost >= 0, "a run may cost {}", most_cost);
  }

  // --- compute thread ---
  Take TakeNext() {
    std::uint64_t word = word_.load(std::memory_order_acquire);
    for (;;) {
      State s = Unpack(word);
      Take take;
      take.part = PartIndex(static_cast<std::uint8_t>(s.part));
      if (s.is_void) return take;
      if (s.audit) {
        take.kind = TakeKind::kAudit;
        take.count = 1;
        s.audit = false;
      } else if (s.head < s.tail) {
        take.kind = TakeKind::kRun;
        take.position = s.head;
        take.count = NextTake(s);
        take.audited = TakesAlone(s);
        s.head += take.count;
        s.begun = true;
      } else if (s.begun) {
        take.kind = TakeKind::kSeal;
        ++s.part;
        s.begun = false;
      } else {
        return take;
      }
      if (word_.compare_exchange_weak(word, Pack(s), std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
        take.work = work_;
        return take;
      }
    }
  }

  // A unit that was taken, of the present work.
  Unit UnitAt(std::uint32_t position) const { return SlotAt(position).Load(); }
  std::vector<Unit> UnitsOf(const Take& take) const {
    if (take.kind == TakeKind::kAudit) return {audit_.Load()};
    std::vector<Unit> units;
    for (std::uint32_t i = 0; i < take.count; ++i) units.push_back(UnitAt(take.position + i));
    return units;
  }

  // While a run is in hand, at most until it succeeds: true where nothing is behind the run. Then
  // the part is being sealed, and the run is its last one.
  bool BeginSeal() {
    std::uint64_t word = word_.load(std::memory_order_acquire);
    for (;;) {
      State s = Unpack(word);
      if (s.is_void || s.head != s.tail) return false;
      LOCKSTEP_CHECK(s.begun, "I2: a part without units is sealed");
      ++s.part;
      s.begun = false;
      if (word_.compare_exchange_weak(word, Pack(s), std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
        return true;
      }
    }
  }

  // The units that the next take gives as things stand: a hint, for who wants to prepare them. They
  // may be taken back, and even be mixtures of two, when units are taken back and given meanwhile.
  std::vector<Unit> PeekNext() const {
    std::vector<Unit> units;
    const State s = Unpack(word_.load(std::memory_order_acquire));
    if (s.is_void) return units;
    const std::uint32_t end = s.head + NextTake(s);
    for (std::uint32_t i = s.head; i < end; ++i) units.push_back(SlotAt(i).Load());
    return units;
  }

  // True once the work was made void: a unit that is being computed may be left off.
  bool IsVoid() const { return Unpack(word_.load(std::memory_order_acquire)).is_void; }

  // --- data thread ---
  // What each sample costs, by position, of the units that are given from now on; null: that is not
  // known, and each of them is a run.
  void SetCosts(std::shared_ptr<const std::vector<float>> costs) { costs_ = std::move(costs); }

  // Only while the compute thread has finished all it took. `first_part`: the parts before it are
  // used up. `audit`: counts for nothing and is taken first; `audits_first`: of the units.
  void Reset(std::uint32_t work, const std::vector<Unit>& units, PartIndex first_part = {},
             const RunLimit& runs = {}, const std::optional<Unit>& audit = {},
             bool audits_first = false) {
    LOCKSTEP_CHECK(units.size() <= capacity_, "{} units in a queue of {}", units.size(), capacity_);
    LOCKSTEP_CHECK(first_part.value <= kMaxParts, "a queue begins at part {}", first_part);
    Store(0, units);
    work_ = work;
    runs_ = runs;
    if (audit) audit_.Set(*audit, 0);
    had_audit_ = audit.has_value();
    first_alone_.store(audits_first, std::memory_order_relaxed);
    State s;
    s.audit = had_audit_;
    s.tail = static_cast<std::uint32_t>(units.size());
    s.part = first_part.value;
    s.turn = (Unpack(word_.load(std::memory_order_relaxed)).turn + 1) & kMostTurn;
    word_.store(Pack(s), std::memory_order_release);
  }

  // Adds units at the tail, all or none. The part they belong to; none where they cannot be taken
  // any more (both parts are being sealed, the queue is void or full).
  std::optional<PartIndex> Append(const std::vector<Unit>& units) {
    std::uint64_t word = word_.load(std::memory_order_acquire);
    for (;;) {
      State s = Unpack(word);
      if (s.is_void || s.part >= std::uint32_t{kMaxParts} || capacity_ - s.tail < units.size()) {
        return std::nullopt;
      }
      // The slots are ours: positions from the tail on are not taken by the compute thread.
      Store(s.tail, units);
      s.tail += static_cast<std::uint32_t>(units.size());
      if (word_.compare_exchange_weak(word, Pack(s), std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
        return PartIndex(static_cast<std::uint8_t>(s.part));
      }
    }
  }

  // Takes back what is not begun, from position `from` on. The first position that was taken back,
  // at least `from` unless the queue ends before it.
  std::uint32_t RevokeFrom(std::uint32_t from) {
    std::uint64_t word = word_.load(std::memory_order_acquire);
    for (;;) {
      State s = Unpack(word);
      s.tail = std::min(s.tail, std::max(s.head, from));
      if (word_.compare_exchange_weak(word, Pack(s), std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
        return s.tail;
      }
    }
  }

  // Nothing more is taken.
  void MakeVoid() { word_.fetch_or(kVoidBit, std::memory_order_acq_rel); }

  // The audited unit that counts for nothing was taken.
  bool audit_taken() const {
    return had_audit_ && !Unpack(word_.load(std::memory_order_acquire)).audit;
  }
  std::uint32_t taken() const { return Unpack(word_.load(std::memory_order_acquire)).head; }
  std::uint32_t size() const { return Unpack(word_.load(std::memory_order_acquire)).tail; }
  // How many parts the compute thread has begun to seal.
  std::uint32_t seals_begun() const { return Unpack(word_.load(std::memory_order_acquire)).part; }
  std::uint32_t capacity() const { return capacity_; }

 private:
  // head: 24 bits, tail: 24 bits, part: 2 bits, then the flags, then the turn: 11 bits.
  static constexpr std::uint32_t kMaxCapacity = (1u << 24) - 1;
  static constexpr std::uint32_t kMostTurn = (1u << 11) - 1;
  static constexpr int kTailShift = 24;
  static constexpr int kPartShift = 48;
  static constexpr std::uint64_t kBegunBit = std::uint64_t{1} << 50;
  static constexpr std::uint64_t kVoidBit = std::uint64_t{1} << 51;
  static constexpr std::uint64_t kAuditBit = std::uint64_t{1} << 52;
  static constexpr int kTurnShift = 53;

  // Atomic word by word, so that PeekNext and TakeNext may look at what is being written.
  class Slot {
   public:
    // `dearest`: the cost of its dearest sample.
    void Set(const Unit& unit, float dearest) {
      index_.store(unit.index.value, std::memory_order_relaxed);
      from_.store(unit.range.from, std::memory_order_relaxed);
      to_.store(unit.range.to, std::memory_order_relaxed);
      dearest_.store(dearest, std::memory_order_relaxed);
    }
    Unit Load() const {
      return {UnitIndex(index_.load(std::memory_order_relaxed)),
              {from_.load(std::memory_order_relaxed), to_.load(std::memory_order_relaxed)}};
    }

    float dearest() const { return dearest_.load(std::memory_order_relaxed); }

   private:
    std::atomic<decltype(UnitIndex::value)> index_{};
    std::atomic<float> dearest_{};
    std::atomic<decltype(SampleRange::from)> from_{};
    std::atomic<decltype(SampleRange::to)> to_{};
  };
  static constexpr std::uint32_t kChunk = 256;  // units
  using Chunk = std::array<Slot, kChunk>;
  class Limit {
   public:
    Limit& operator=(const RunLimit& limit) {
      units_.store(limit.units, std::memory_order_relaxed);
      guided_.store(limit.guided, std::memory_order_relaxed);
      return *this;
    }
    RunLimit Load() const {
      return {units_.load(std::memory_order_relaxed), guided_.load(std::memory_order_relaxed)};
    }

   private:
    std::atomic<decltype(RunLimit::units)> units_{};
    std::atomic<bool> guided_{};
  };
  struct State {
    std::uint32_t head = 0;  // units taken
    std::uint32_t tail = 0;  // units given
    std::uint32_t part = 0;  // the part that is being added to; 2: both are sealed
    bool begun = false;      // that part has a unit
    bool is_void = false;
    bool audit = false;      // there is one, and it is not taken
    std::uint32_t turn = 0;  // of Resets
  };
  static std::uint64_t Pack(const State& s) {
    LOCKSTEP_CHECK(s.head <= s.tail && s.tail <= kMaxCapacity, "I2: {} units taken of {}", s.head,
                   s.tail);
    LOCKSTEP_CHECK(s.part <= kMaxParts, "I2: {} parts are sealed", s.part);
    return std::uint64_t{s.head} | std::uint64_t{s.tail} << kTailShift |
           std::uint64_t{s.part} << kPartShift | (s.begun ? kBegunBit : 0) |
           (s.is_void ? kVoidBit : 0) | (s.audit ? kAuditBit : 0) |
           std::uint64_t{s.turn} << kTurnShift;
  }
  static State Unpack(std::uint64_t w) {
    return {.head = static_cast<std::uint32_t>(w & kMaxCapacity),
            .tail = static_cast<std::uint32_t>(w >> kTailShift & kMaxCapacity),
            .part = static_cast<std::uint32_t>(w >> kPartShift & 3),
            .begun = (w & kBegunBit) != 0,
            .is_void = (w & kVoidBit) != 0,
            .audit = (w & kAuditBit) != 0,
            .turn = static_cast<std::uint32_t>(w >> kTurnShift)};
  }

  bool TakesAlone(const State& s) const {
    return s.head == 0 && first_alone_.load(std::memory_order_relaxed);
  }

  // How many of its units that are left are taken next.
  std::uint32_t NextTake(const State& s) const {
    if (TakesAlone(s) && s.tail > 0) return 1;
    const std::uint32_t most = NextRun(s.tail - s.head, Within(runs_.Load(), bound_.units));
    if (bound_.samples == 0 && most_cost_ == 0) return most;
    std::uint64_t samples = 0;
    double dearest = 0;
    for (std::uint32_t count = 0; count < most; ++count) {
      const Slot& slot = SlotAt(s.head + count);
      samples += slot.Load().range.size();
      dearest = std::max(dearest, double{slot.dearest()});
      const bool within = (bound_.samples == 0 || samples <= bound_.samples) &&
                          (most_cost_ == 0 || static_cast<double>(samples) * dearest <= most_cost_);
      if (!within && count > 0) return count;
    }
    return most;
  }

  float DearestOf(const SampleRange& range) const {
    if (most_cost_ == 0) return 0;
    if (costs_ == nullptr || range.to > costs_->size() || range.from >= range.to) return kNotKnown;
    return *std::max_element(costs_->begin() + static_cast<std::ptrdiff_t>(range.from),
                             costs_->begin() + static_cast<std::ptrdiff_t>(range.to));
  }

  // Of the data thread. A chunk is there before the word says that a unit is in it.
  void Store(std::uint32_t position, const std::vector<Unit>& units) {
    for (const Unit& unit : units) {
      std::unique_ptr<Chunk>& chunk = chunks_[position / kChunk];
      if (chunk == nullptr) chunk = std::make_unique<Chunk>();
      (*chunk)[position++ % kChunk].Set(unit, DearestOf(unit.range));
    }
  }
  const Slot& SlotAt(std::uint32_t position) const {
    return (*chunks_[position / kChunk])[position % kChunk];
  }

  const std::uint32_t capacity_;
  static constexpr float kNotKnown = std::numeric_limits<float>::infinity();

  const RunBound bound_;
  const double most_cost_;
  std::shared_ptr<const std::vector<float>> costs_;  // of the data thread
  // Few workers are ever given all units of a round; those of a simulated job are in one process.
  std::vector<std::unique_ptr<Chunk>> chunks_;
  // Written by Reset. Read by the compute thread when a take has succeeded; the limit before that.
  std::uint32_t work_ = 0;
  Limit runs_;
  Slot audit_;  // taken alone, so its cost does not matter
  std::atomic<bool> first_alone_{false};
  bool had_audit_ = false;  // of the data thread
  std::atomic<std::uint64_t> word_{0};
};

}  // namespace lockstep::worker
