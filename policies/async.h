// Policy `async`: asynchronous SGD with a bound on staleness. Every contribution is committed as it
// comes, together with all others that are there. The other workers go on computing with the
// parameters that they began with, and contribute to a later commit.
//
// The staleness of a contribution is the number of commits since its worker was given the work. A
// round waits for whose contribution would be staler than the bound if it closed without it; bound
// 0 is synchronous SGD. Damping makes up for stale gradients. With N workers a staleness of N - 1
// is usual; the linear scaling of the learning rate with the samples of a commit covers it. Beyond
// that a contribution counts N / (1 + staleness).
//
// Sources: Downpour SGD (Dean et al., NIPS 2012, section 4.1); the bound is that of SSP (Ho et al.,
// NIPS 2013, section 3); damping after Zhang et al., IJCAI 2016 (staleness-aware async-SGD, section
// 3).
#pragma once

#include <cstdint>

#include "policies/policy.h"

namespace lockstep::policies {

struct AsyncOptions {
  std::uint32_t staleness = 0;  // bound, in commits
  bool damping = true;
};

Policy MakeAsync(const AsyncOptions& options);

}  // namespace lockstep::policies
