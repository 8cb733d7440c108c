#include "worker/runtime/contribution.h"

#include <array>
#include <utility>

#include "base/check.h"
#include "worker/runtime/gradient_sample.h"

namespace lockstep::worker {

Contribution::Contribution(const JobConfig& config, WorkerId self, const Layout& layout,
                           WorkerBuffers& buffers, ResidualFiles* files)
    : seed_(config.job.seed),
      rounds_at_random_(config.exchange.rounding == "stochastic"),
      passes_partial_sums_on_(config.exchange.algorithm != "direct"),
      self_(self),
      layout_(layout),
      buffers_(buffers),
      files_(files) {
  if (buffers_.residual(0) != nullptr) {
    residual_.emplace(buffers_.residual(0), std::array{buffers_.residual(1), buffers_.residual(2)},
                      layout_.parameter_count());
  }
  if (layout_.rank() > 0) {
    factors_.emplace(layout_, buffers_.type(), seed_);
    auto form = std::make_unique<FactorForm>(layout_, *factors_);
    factor_form_ = form.get();
    form_ = std::move(form);
  } else if (residual_) {
    form_ = std::make_unique<LargestOnly>(buffers_.type(), layout_.kept());
  }
}

void Contribution::OnNewCoordinator(std::span<const SealedPart> applied, bool copied) {
  if (residual_) residual_->OnNewNumbers(applied, copied);
  part_.reset();
  gradient_ = nullptr;
  buckets_ = unsettled_ = 0;
}

void Contribution::OnEnd(std::span<const SealedPart> applied, bool copied) {
  if (!residual_ || files_ == nullptr) return;
  OnNewCoordinator(applied, copied);
  files_->OnEnd(*residual_);
}

bool Contribution::BeginRun(const action::StartWork& work, PartIndex part) {
  const SealedPart begun{work.work, part};
  const bool first = part_ != begun;
  contribution_ = work.parts[part.value];
  if (first && residual_) {
    if (!part_ || part_->work != begun.work) {
      residual_->OnStart(work.applied, work.copied);
      if (files_ != nullptr) files_->OnWork(&*residual_);
      // The state is that of the round before until the first run of the work is done.
      if (factor_form_ != nullptr) factor_form_->Begin(work.round, buffers_.factors());
    }
    residual_->Begin(part);
  }
  part_ = begun;
  round_ = work.round;
  gradient_ = residual_ ? residual_->Gradient(part) : buffers_.Gradient(contribution_);
  buckets_ = 0;
  unsettled_ = 0;
  fits_ = true;
  rounding_ = {};
  if (rounds_at_random_) rounding_ = RoundingOfContribution(seed_, work.round, self_, part);
  return first;
}

void Contribution::BeginAudit(const action::StartWork& work) {
  LOCKSTEP_CHECK(!residual_, "an audit with compression");
  part_.reset();
  round_ = work.round;
  contribution_ = work.parts.front();
  gradient_ = buffers_.Gradient(contribution_);
}

void Contribution::SendEarly(std::uint32_t buckets) { SendUpTo(buckets, /*early=*/true); }

bool Contribution::Finish() {
  Settle();
  SendUpTo(layout_.bucket_count(), /*early=*/false);
  if (!SendsGradientItself()) return fits_;
  return !passes_partial_sums_on_ ||
         buffers_.memory().AllFinite(gradient_, layout_.parameter_count());
}

std::optional<double> Contribution::SampledSquares() const {
  return worker::SampledSquares(buffers_.memory(), gradient_, layout_.parameter_count(),
                                round_.value);
}

bool Contribution::SendsGradientItself() const {
  return buffers_.type() == NumberType::kFp32 && !residual_;
}

void Contribution::SendUpTo(std::uint32_t buckets, bool early) {
  if (SendsGradientItself()) return;
  // Of a device a call is to be waited for, and nothing goes early.
  if (!buffers_.memory().on_host()) {
    LOCKSTEP_CHECK(!early && buckets_ == 0 && !residual_, "part of a gradient on a device");
    fits_ = Narrow({0, layout_.parameter_count()});
    buckets_ = buckets;
    return;
  }
  for (; buckets_ < buckets; ++buckets_) {
    const FloatRange& bucket = layout_.bucket(buckets_);
    fits_ = (residual_ ? SendSome(bucket, early) : Narrow(bucket)) && fits_;
  }
  if (early) unsettled_ = buckets_;
}

bool Contribution::Narrow(const FloatRange& range) {
  return buffers_.memory().Narrow(buffers_.type(), gradient_ + range.first,
                                  reinterpret_cast<std::uint16_t*>(InContribution(range)),
                                  range.count, rounding_, range.first);
}

bool Contribution::SendSome(const FloatRange& bucket, bool early) {
  std::byte* to = InContribution(bucket);
  return early ? residual_->SendEarly(*part_, bucket.first, bucket.count, *form_, to)
               : residual_->Send(*part_, bucket.first, bucket.count, *form_, to);
}

void Contribution::Settle() {
  if (!residual_) return;
  const std::uint32_t unsettled = std::exchange(unsettled_, 0u);
  for (std::uint32_t b = 0; b < unsettled; ++b) {
    const FloatRange& bucket = layout_.bucket(b);
    residual_->Settle(*part_, bucket.first, bucket.count, *form_, InContribution(bucket));
  }
}

std::byte* Contribution::InContribution(const FloatRange& bucket) {
  return buffers_.Data(contribution_) +
         layout_.InContribution(bucket).first * layout_.number_bytes();
}

}  // namespace lockstep::worker
