#include "coordinator/core/outliers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "base/check.h"

namespace lockstep::coordinator {
namespace {

// Rounds before a worker is judged by its mean, and until it counts as like the others again.
constexpr std::uint32_t kRounds = 32;
constexpr double kWeight = 1.0 / 16;  // of the last round in the mean
// Standard deviation of such a mean over that of a round: sqrt(kWeight / (2 - kWeight)).
constexpr double kNoiseOfMean = 0.18;
constexpr double kDeviations = 3;
constexpr double kSpreads = 5;
constexpr double kNormalSpread = 1.4826;  // standard deviation over median absolute deviation
const double kFactor = std::log(2);
const double kAtOnce = std::log(1000);
const double kMost = std::log(1000);  // of a round, in the mean

double Median(std::vector<double>& values) {
  LOCKSTEP_CHECK(!values.empty(), "the median of nothing");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::ranges::max_element(values.begin(), middle)) / 2;
}

// A logarithm of a norm, less what n samples make it: of noise alone, and where all are alike.
double OfNoise(const GradientWatch::Norm& norm) {
  return (std::log(norm.squares) - std::log(norm.count)) / 2;
}
double OfSample(const GradientWatch::Norm& norm) {
  return std::log(norm.squares) / 2 - std::log(norm.count);
}

// The common part of both: nothing, where one of them explains it.
double Least(double a, double b) {
  if ((a > 0) != (b > 0)) return 0;
  return std::abs(a) < std::abs(b) ? a : b;
}

}  // namespace

// A gradient of zeros is as small as can be, where most are not.
std::vector<GradientWatch::Off> GradientWatch::OffsOf(std::span<const Norm> norms) {
  std::vector<double> noise;
  std::vector<double> sample;
  for (const Norm& norm : norms) {
    if (norm.squares <= 0) continue;
    noise.push_back(OfNoise(norm));
    sample.push_back(OfSample(norm));
  }
  std::vector<Off> offs(norms.size());
  if (2 * noise.size() <= norms.size()) return offs;
  // Each of two is compared with the smaller one.
  const bool two = norms.size() == 2;
  const double usual_noise = two ? std::ranges::min(noise) : Median(noise);
  const double usual = two ? std::ranges::min(sample) : Median(sample);
  largest_usual_ = std::max(largest_usual_.value_or(usual), usual);
  for (std::size_t i = 0; i < norms.size(); ++i) {
    if (norms[i].squares <= 0) {
      offs[i] = {-kMost, -kMost};
      continue;
    }
    const double of_sample = OfSample(norms[i]);
    offs[i] = {Least(OfNoise(norms[i]) - usual_noise, of_sample - usual),
               of_sample - *largest_usual_};
  }
  return offs;
}

// Of two others or more.
double GradientWatch::SpreadBeside(WorkerId worker, std::span<const Norm> norms) const {
  std::vector<double> means;
  for (const Norm& norm : norms) {
    if (norm.worker != worker) means.push_back(workers_[norm.worker.value].mean);
  }
  const double usual = Median(means);
  for (double& mean : means) mean = std::abs(mean - usual);
  return kNormalSpread * Median(means);
}

// The spread costs a pass over the others, which is left to those that are beyond all else.
bool GradientWatch::Lasting(WorkerId worker, std::span<const Norm> norms) const {
  const Worker& of = workers_[worker.value];
  const double noise = kDeviations * kNoiseOfMean * std::sqrt(of.variance);
  const double off = std::abs(of.mean);
  if (of.rounds < kRounds || off <= kFactor + noise) return false;
  return off > kSpreads * SpreadBeside(worker, norms);
}

void GradientWatch::Note(Worker& worker, double off) const {
  ++worker.rounds;
  const double weight = std::max(1.0 / worker.rounds, kWeight);
  const double by = std::clamp(off, -kMost, kMost) - worker.mean;
  worker.mean += weight * by;
  worker.variance = (1 - weight) * (worker.variance + weight * by * by);
}

std::vector<GradientWatch::Change> GradientWatch::OnRound(std::span<const Norm> norms) {
  std::vector<Change> changes;
  if (norms.size() < 2) return changes;
  const std::vector<Off> offs = OffsOf(norms);
  for (std::size_t i = 0; i < norms.size(); ++i) {
    Note(workers_[norms[i].worker.value], offs[i].by);
  }
  for (std::size_t i = 0; i < norms.size(); ++i) {
    Worker& worker = workers_[norms[i].worker.value];
    const bool lasting = Lasting(norms[i].worker, norms);
    const bool at_once = std::min(offs[i].by, offs[i].largest) > kAtOnce;
    if (lasting || at_once) {
      worker.calm = 0;
      if (worker.far) continue;
      const double times = std::exp(at_once ? offs[i].by : worker.mean);
      worker.far = Change{norms[i].worker, true, times, norms.size() == 2};
      changes.push_back(*worker.far);
    } else if (worker.far && ++worker.calm >= kRounds) {
      worker.far.reset();
      changes.push_back({norms[i].worker, false, std::exp(worker.mean), norms.size() == 2});
    }
  }
  return changes;
}

std::optional<double> GradientWatch::Times(WorkerId worker) const {
  const Worker& of = workers_[worker.value];
  if (of.rounds < kRounds) return std::nullopt;
  return std::exp(of.mean);
}

std::vector<GradientWatch::Change> GradientWatch::Far() const {
  std::vector<Change> far;
  for (const Worker& worker : workers_) {
    if (worker.far) far.push_back(*worker.far);
  }
  return far;
}

// A job that explodes from its first rounds on must not be measured by that, so what these may add
// to the reference is bounded by the very first loss.
bool LossWatch::OnRound(double loss) {
  constexpr std::uint32_t kFirst = 16;
  constexpr double kMuch = 10;
  constexpr double kFarTooMuch = 1000;
  constexpr std::uint32_t kInARow = 3;
  if (rounds_++ == 0) first_ = reference_ = std::abs(loss);
  if (rounds_ <= kFirst && std::abs(loss) <= kMuch * first_) {
    reference_ = std::max(reference_, std::abs(loss));
  }
  if (reference_ == 0) return false;
  const bool beyond = loss > kMuch * reference_;
  in_a_row_ = beyond != exploded_ ? in_a_row_ + 1 : 0;
  if (beyond) times_ = loss / reference_;
  const bool changes = exploded_
                           ? in_a_row_ >= kFirst
                           : in_a_row_ >= kInARow || (beyond && loss > kFarTooMuch * reference_);
  if (!changes) return false;
  exploded_ = beyond;
  in_a_row_ = 0;
  return true;
}

namespace {

std::string TextOf(const GradientWatch::Change& far) {
  if (far.of_two) {
    return fmt::format(
        "the gradients of worker {} are {:.3g} times as large as those of the other worker: one of "
        "the two is wrong, or their data differ",
        far.worker, far.times);
  }
  return fmt::format(
      "the gradients of worker {} are {:.3g} times as large as those of the median worker: look at "
      "its loss, its data and its machine",
      far.worker, far.times);
}

// A worker with two parts counts by the larger one.
std::vector<GradientWatch::Norm> NormsOf(const RoundRecord& record) {
  std::map<WorkerId, GradientWatch::Norm> norms;
  for (const ContributorRecord& part : record.contributors) {
    if (!part.sampled_squares || part.divisor == 0) continue;
    const auto count = static_cast<double>(part.divisor);
    GradientWatch::Norm& norm = norms[part.worker];
    if (count > norm.count) norm = {part.worker, *part.sampled_squares, count};
  }
  std::vector<GradientWatch::Norm> all;
  for (const auto& [worker, norm] : norms) all.push_back(norm);
  return all;
}

}  // namespace

std::string Outliers::LossText() const {
  return fmt::format(
      "the loss has exploded: {:.4g}, {:.3g} times that of the first rounds: look at the learning "
      "rate (optimizer.lr, schedule.warmup), at optimizer.clip and at what each worker computes",
      last_loss_, loss_.times());
}

std::vector<Outliers::Line> Outliers::OnClosed(const RoundRecord& record) {
  std::vector<Line> lines;
  for (const GradientWatch::Change& change : gradients_.OnRound(NormsOf(record))) {
    if (change.far) {
      lines.push_back({true, fmt::format("round {}: {}", record.round, TextOf(change))});
    } else {
      lines.push_back({false, fmt::format("round {}: the gradients of worker {} are like those of "
                                          "others again",
                                          record.round, change.worker)});
    }
  }
  last_loss_ = record.loss;
  if (loss_.OnRound(record.loss)) {
    lines.push_back(
        {loss_.exploded(),
         fmt::format("round {}: {}", record.round,
                     loss_.exploded() ? LossText()
                                      : fmt::format("the loss is {:.4g} again", record.loss))});
  }
  return lines;
}

std::vector<std::string> Outliers::Standing() const {
  std::vector<std::string> texts;
  for (const GradientWatch::Change& far : gradients_.Far()) texts.push_back(TextOf(far));
  if (loss_.exploded()) texts.push_back(LossText());
  return texts;
}

}  // namespace lockstep::coordinator
