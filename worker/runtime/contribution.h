// The contribution that the compute thread has in hand: where its gradient is summed. Where what is
// exchanged is another memory than that (numbers of 16 bits, or not all of them), also how much of
// the gradient has been put there.
//
// Not thread-safe: who is told by several threads what is final has a lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/ids.h"
#include "base/job_config.h"
#include "base/messages.h"
#include "worker/core/step_io.h"
#include "worker/layout/layout.h"
#include "worker/memory/factors.h"
#include "worker/memory/narrow.h"
#include "worker/memory/residual.h"
#include "worker/memory/sent_form.h"
#include "worker/runtime/residual_files.h"
#include "worker/runtime/worker_buffers.h"

namespace lockstep::worker {

class Contribution {
 public:
  // `layout` and `buffers` outlive it.
  // `files`: null, nothing that compression keeps back is saved.
  Contribution(const JobConfig& config, WorkerId self, const Layout& layout, WorkerBuffers& buffers,
               ResidualFiles* files = nullptr);

  // The next coordinator numbers works anew. `applied`, `copied`: as of action::Detached.
  void OnNewCoordinator(std::span<const SealedPart> applied, bool copied);

  // The job has ended, and the parameters are its last ones: as above.
  void OnEnd(std::span<const SealedPart> applied, bool copied);

  // A run of this part of the work begins. True: its first one, for which the gradient begins at
  // zero, which is the caller's to see to.
  bool BeginRun(const action::StartWork& work, PartIndex part);
  // Of the part in hand, or of the last one: as many floats as the parameters.
  float* gradient() { return gradient_; }

  // The same for a run that is part of nothing, in the memory of the work's first part: its
  // gradient always begins at zero. Nothing of it is sent. Not with compression.
  void BeginAudit(const action::StartWork& work);

  // The first so many buckets of the gradient are final while the program may still read it: what
  // is exchanged of them is there when this returns.
  void SendEarly(std::uint32_t buckets);
  // All of it is final, and the program does not read it any more. False: some of what is sent are
  // no numbers. Where the gradient itself is what is sent and nobody but its owners sums it
  // (direct), they find that in the sum, for nothing. So it is not looked for here. (Where partial
  // sums are passed on, their last one would not tell whose it was.)
  bool Finish();

  // How large the gradient of the part in hand is; before Finish, which may take from it what it
  // sends. As gradient_sample.h.
  std::optional<double> SampledSquares() const;

  // True when owners sum the gradient as it lies.
  bool SendsGradientItself() const;
  // SendEarly may be called: of numbers of 16 bits on a device all go in Finish, by one kernel.
  bool GoesEarly() const { return SendsGradientItself() || buffers_.memory().on_host(); }

 private:
  void SendUpTo(std::uint32_t buckets, bool early);
  bool SendSome(const FloatRange& bucket, bool early);
  bool Narrow(const FloatRange& range);
  void Settle();
  std::byte* InContribution(const FloatRange& bucket);

  const std::uint64_t seed_;
  const bool rounds_at_random_;
  const bool passes_partial_sums_on_;
  const WorkerId self_;
  const Layout& layout_;
  WorkerBuffers& buffers_;
  ResidualFiles* const files_;
  // Where contributions have not all of a gradient.
  std::optional<Residual> residual_;
  std::unique_ptr<SentForm> form_;
  std::optional<Factors> factors_;  // with factors: form_ is theirs
  FactorForm* factor_form_ = nullptr;

  std::optional<SealedPart> part_;  // in hand
  RoundId round_;                   // of it
  BufferId contribution_;
  float* gradient_ = nullptr;
  // Of that, so many buckets are in contribution_ where it is not summed there; the first of them
  // went early. Also whether all of their values are numbers there, and how they are rounded.
  std::uint32_t buckets_ = 0;
  std::uint32_t unsettled_ = 0;
  bool fits_ = true;
  Rounding rounding_;
};

}  // namespace lockstep::worker
