// Watches workers' cores from outside, by the events that they get and the actions that they ask
// for: which pieces of contributions have arrived at whom, which orders were taken.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "base/interval_set.h"
#include "tools/simulate/step_worker.h"

namespace lockstep::simulate {

class Arrivals {
 public:
  // Takes the cluster's taps, which it must outlive.
  explicit Arrivals(Cluster* cluster);

  // A first attempt is made over parts that all owners have, whatever they have said of them.
  // Empty, or which one lacks what.
  std::string Lacking(const msg::Commit& commit) const;

  std::uint64_t assigned() const { return assigned_; }
  std::uint64_t refused() const { return refused_; }  // of these: the worker had no part left

 private:
  struct Part {
    MemberId owner, contributor;
    RoundId round;
    PartIndex part;
    auto operator<=>(const Part&) const = default;
  };
  struct Fetch {
    Part part;
    worker::FloatRange range;
  };
  void OnEvent(const MemberId& worker, const worker::Event& event);
  void OnAction(const MemberId& worker, const worker::Action& action);

  Cluster* cluster_;
  std::map<std::pair<MemberId, std::uint64_t>, Fetch> fetches_;  // by who asks, and its number
  std::map<Part, RangeSet<worker::FloatRange>> arrived_;
  std::set<MemberId> ordered_;  // it is hearing an Assign
  std::uint64_t assigned_ = 0;
  std::uint64_t refused_ = 0;
};

}  // namespace lockstep::simulate
