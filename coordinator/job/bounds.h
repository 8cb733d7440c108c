// The time that each thing may take before a member is blamed for it, in one place. Every bound
// follows from liveness.timeout. Bounds of bulk transfers also follow from how long these took
// recently: a job with an exchange beyond the time-out is slow, not lost.
// docs/reference/operations.md has the table.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/check.h"
#include "base/time.h"

namespace lockstep::coordinator {

// The median of the latest samples: robust against the very stalls that bounds are for. Each
// message asks for it several times, so it is kept up to date.
class RecentLatency {
 public:
  void Add(Duration sample) {
    LOCKSTEP_CHECK(sample >= Duration{}, "something took less than no time");
    if (count_ == samples_.size()) {
      auto* const oldest = std::lower_bound(sorted_.begin(), End(), samples_[next_]);
      std::move(oldest + 1, End(), oldest);
      --count_;
    }
    auto* const at = std::upper_bound(sorted_.begin(), End(), sample);
    std::move_backward(at, End(), End() + 1);
    *at = sample;
    ++count_;
    samples_[next_] = sample;
    next_ = (next_ + 1) % samples_.size();
  }
  std::optional<Duration> Median() const {
    if (count_ == 0) return std::nullopt;
    return sorted_[count_ / 2];
  }
  std::size_t count() const { return count_; }

 private:
  Duration* End() { return sorted_.data() + count_; }

  // Invariant: the first `count_` of `sorted_` are those of `samples_`, ascending.
  std::array<Duration, 63> samples_{};  // as they came
  std::array<Duration, 63> sorted_{};
  std::size_t next_ = 0;
  std::size_t count_ = 0;
};

// Invariants: a bound is never below what the same thing usually takes. None is above a small
// multiple of the time-out, unless that thing was seen to take as long.
class Bounds {
 public:
  explicit Bounds(Duration timeout) : timeout_(timeout) {}

  // --- what is known
  // Before anything has been exchanged: what the slowest path was measured at, and how many bytes
  // the parameters are. Nothing (0) when it was not measured.
  void NotePaths(std::uint64_t parameter_bytes, double slowest_bytes_per_second);
  void NoteReceipts(Duration took) { receipts_.Add(took); }          // after a part was sealed
  void NotePublication(Duration took) { publication_.Add(took); }    // after the commit
  void NoteApplication(Duration took) { application_.Add(took); }    // until the last has applied
  void NoteEvaluatedChunk(Duration took) { evaluation_.Add(took); }  // of the test set

  // The median time from a round's commit until all had applied it.
  std::optional<Duration> UsualApplication() const { return application_.Median(); }

  // --- of an owner: ten times what is usual, at most half of the time-out, and never less than
  // twice what is usual
  Duration Receipts() const { return OfOwner(receipts_, kLeastReceipts); }
  Duration Publication() const { return OfOwner(publication_, kLeastPublication); }
  // The answer to a Revoke or a FenceAttempt: it waits behind the bulk on the worker's link.
  Duration Answer() const { return Publication(); }

  // With optimizer.replicas: from the commit until all replicas hold their shards, and then until
  // all members have the parameters. After it, a silent member counts as stopped.
  Duration Holding() const { return OfOwner(publication_, kLeastHolding); }
  Duration ParameterFetch() const { return OfOwner(application_, kLeastHolding); }

  // From the last publication until all have applied it; then a silent owner is blamed.
  Duration Serving() const { return OfOwner(application_, kLeastPublication); }
  // The wait for one of so many owners until another one stands in for it. It is short, because a
  // wrong guess costs little. There is no bound until four rounds are published: each buffer is
  // slow when it is first touched, and a stand-in's buffers take memory for the rest of the job.
  std::optional<Duration> Hedge(std::size_t owners) const;

  // --- silence: each sign that a thing gets on begins the bound anew
  // Nobody has published or applied the last round any more.
  Duration LastRound() const { return OfBulk(1); }
  // Nobody is live, and one that may have the parameters has not said so. There is nothing left to
  // lose by waiting, and its answer may be on a slow way.
  Duration Survivor() const { return OfBulk(1); }
  // Nobody publishes or applies a round any more, or answers who holds it, though all are heard.
  Duration Stuck() const { return OfBulk(6); }
  // A live member has not applied a closed round, nor finished a unit.
  Duration Following() const { return OfBulk(3); }
  // The writer of a checkpoint has sent no piece.
  Duration Upload() const { return OfBulk(3); }
  // A member that catches up has copied nothing more.
  Duration Copy() const { return OfBulk(6); }

  // --- as a whole
  // Of a chunk of the test set, until another member is given it, too.
  Duration EvaluationChunk() const;
  // The digest of the parameters at the end.
  Duration FinalDigest(std::uint64_t parameter_bytes) const;

 private:
  // A wrong verdict of silence costs little before the commit: the others take its slices again.
  // After the commit it costs another attempt.
  static constexpr Duration kLeastReceipts = std::chrono::milliseconds(25);
  static constexpr Duration kLeastPublication = std::chrono::milliseconds(250);
  // A replica that is wrongly taken for stopped costs the others a copy of its shards. Or it costs
  // nothing: they take the parameters from another replica.
  static constexpr Duration kLeastHolding = std::chrono::milliseconds(50);

  Duration OfOwner(const RecentLatency& latency, Duration least) const;
  Duration OfBulk(int timeouts) const;

  const Duration timeout_;
  std::optional<Duration> exchange_;  // estimated out of the paths
  RecentLatency receipts_;
  RecentLatency publication_;
  RecentLatency application_;
  RecentLatency evaluation_;
};

}  // namespace lockstep::coordinator
