// When a round came how far on this worker, by its own monotonic clock, for whoever measures the
// exchange. Read off what passes the data plane: RoundClock decides nothing and changes nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "base/time.h"
#include "worker/core/step_io.h"

namespace lockstep::worker {

struct RoundTimes {
  RoundId round = {};
  Time sealed = {};     // the last part of this worker; the epoch of the clock: it has sealed none
  Time delivered = {};  // the last receipt given; the epoch: none was
  Time committed = {};  // the commit was heard
  Time reduced = {};    // the own shard is summed; the epoch: it owns none
  Time published = {};  // and announced
  Time taken = {};      // all shards can be read, and the update begins
  Time applied = {};    // the parameters are updated
  // Bytes of contributions and sums that were copied to this worker, through a transport, with a
  // message or out of a mapping. Bytes that are read where they lie are not copied.
  std::uint64_t copied = 0;
};

class RoundClock {
 public:
  using Report = std::function<void(const RoundTimes&)>;
  // `report`: gets a round when it is applied here; null: nothing is noted. The data thread.
  // `number_bytes`: Layout::number_bytes of the job.
  explicit RoundClock(Report report, std::uint64_t number_bytes = sizeof(float))
      : report_(std::move(report)), number_bytes_(number_bytes) {}

  void Saw(Time now, const Event& event);
  void Saw(Time now, const Action& action);

 private:
  RoundTimes& Of(RoundId round);

  const Report report_;
  const std::uint64_t number_bytes_;
  std::map<RoundId, RoundTimes> open_;        // at most kOpen
  std::map<std::uint64_t, RoundId> reduces_;  // operations under way
  std::uint64_t copied_ = 0;                  // since a round was applied last
};

}  // namespace lockstep::worker
