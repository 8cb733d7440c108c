// Chooses the algorithm of the next round's exchange. exchange.algorithm names it, or, with auto,
// the quickest one is taken. Its time is predicted by a cost model over the measured links until it
// was tried, and measured from then on.
//
// Invariants: a choice has a reason for people. It changes only after some rounds with the one
// before, and only for a clear gain, so it comes to rest.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "base/messages.h"
#include "base/time.h"
#include "coordinator/job/context.h"

namespace lockstep::coordinator {

// Measurements of the links between workers.
struct MeasuredLinks {
  double bytes_per_second = 0;  // of the slowest path; 0: not measured
  Duration latency{};           // of a message, one way
  bool all_mapped = false;      // all workers read each other's memory
};

// Latency and bandwidth (alpha, beta), as in R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of
// collective communication operations in MPICH", IJHPCA 19 (2005); and a cost of each message at
// its ends, which is what many senders to one receiver come to.
Duration PredictExchange(ExchangeAlgorithm algorithm, std::uint32_t workers, std::uint64_t bytes,
                         const MeasuredLinks& links);

class AlgorithmChoice {
 public:
  // `name`: exchange.algorithm.
  explicit AlgorithmChoice(const std::string& name);

  // Chooses for the next round, with so many workers and bytes of parameters. `only_direct`: why
  // auto can take no other one as long as the policy is the present one; empty: it can. When that
  // changes, it begins again.
  ExchangeAlgorithm Choose(std::uint32_t workers, std::uint64_t bytes, const MeasuredLinks& links,
                           const std::string& only_direct = {});
  // A round took so long from its last part until all had applied it.
  void OnRound(ExchangeAlgorithm algorithm, Duration took);

  ExchangeAlgorithm chosen() const { return chosen_; }
  const std::string& reason() const { return reason_; }
  // True if a choice was made or changed since the last call.
  bool TakeNews();

 private:
  struct Tried {
    RecentLatency took;
    std::uint32_t rounds = 0;
  };
  struct Cost {
    Duration of{};
    bool measured = false;
  };
  Cost CostOf(ExchangeAlgorithm algorithm, std::uint64_t bytes, const MeasuredLinks& links) const;
  void Take(ExchangeAlgorithm algorithm, std::string reason);

  const bool auto_;
  std::string only_direct_;  // as of the last choice
  ExchangeAlgorithm chosen_ = ExchangeAlgorithm::kDirect;
  std::string reason_;
  bool news_ = false;
  std::uint32_t workers_ = 0;   // that `tried_` is of
  std::array<Tried, 3> tried_;  // by algorithm
};

}  // namespace lockstep::coordinator
