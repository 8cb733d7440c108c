#include "policies/balance.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "policies/outlook.h"
#include "policies/work_none.h"

namespace lockstep::policies {
namespace {

// A worker without units is not measured. After so many rounds it gets one unit again.
constexpr std::uint32_t kProbeEvery = 64;

Duration ShareTime(Duration unit_time, double run_cost, std::uint32_t units) {
  return unit_time * units + FromSeconds(Seconds(unit_time) * run_cost);
}

double LowerMedian(std::vector<double> values) {
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Tells slow workers from long units. Where units take different times because of their data, the
// recent time of a worker differs from that of the others by chance, and a share by it makes the
// round longer. So a difference counts once it is beyond what chance makes of means over as many
// rounds. A sudden change beyond all that chance makes of a single round counts at once.
class Speeds {
 public:
  // `change`: a smaller one, as a share, is no sudden one. Returns the members' unit times to plan
  // by.
  std::vector<Duration> Learn(std::span<const WorkerView> members, double change) {
    for (const WorkerView& member : members) Add(member, change);
    std::vector<double> means;
    std::vector<double> spreads;
    for (const WorkerView& member : members) {
      const Known& known = known_[member.member.worker.value];
      means.push_back(known.mean);
      if (known.rounds > 1) spreads.push_back(known.spread * OverMedian(known.rounds - 1));
    }
    const double usual = LowerMedian(means);
    usual_spread_ = spreads.empty() ? SpreadOf(means, usual) : LowerMedian(std::move(spreads));
    std::vector<Duration> times;
    for (std::size_t i = 0; i < members.size(); ++i) {
      const Known& known = known_[members[i].member.worker.value];
      const double tolerance = kBeyondChance * std::sqrt(usual_spread_ * ErrorOf(known.rounds));
      const bool differs = std::abs(means[i] - usual) > tolerance * usual;
      times.push_back(FromSeconds(differs ? means[i] : usual));
    }
    return times;
  }

 private:
  static constexpr double kMemory = 16;       // rounds
  static constexpr double kBeyondChance = 3;  // standard deviations of a mean
  static constexpr double kSudden = 4;        // of a round
  // A worker's recent time is a median over three rounds, so those of rounds side by side are much
  // alike: so many are worth one.
  static constexpr double kAlike = 2.5;

  struct Known {
    MemberId member;
    std::uint32_t rounds = 0;
    double mean = 0;    // of the recent times, in seconds
    double spread = 0;  // the variance of these, relative to the mean's square
  };

  // The variance of a mean over so many rounds, relative to that of one.
  static double ErrorOf(std::uint32_t rounds) {
    const double kept = 1 / (2 * kMemory - 1);  // of a mean with exponential weights
    return std::min(1.0, kAlike * std::max(1.0 / rounds, kept));
  }

  // A variance over its median, if it is of so many differences: few are mostly too small. After
  // Wilson and Hilferty, "The distribution of chi-square", PNAS 17, 1931.
  static double OverMedian(std::uint32_t differences) {
    return std::pow(1 - 2.0 / (9.0 * differences), -3);
  }

  // After one round only workers can be compared. That most are much alike shows what chance makes;
  // where half of them or more have the same time, all others differ.
  static double SpreadOf(const std::vector<double>& means, double usual) {
    constexpr double kDeviation = 1.4826;  // over the median of what is off, if times are normal
    std::vector<double> off;
    for (const double mean : means) off.push_back(std::abs(mean / usual - 1));
    const double deviation = kDeviation * LowerMedian(std::move(off));
    return deviation * deviation;
  }

  void Add(const WorkerView& member, double change) {
    const std::uint32_t slot = member.member.worker.value;
    if (known_.size() <= slot) known_.resize(slot + 1);
    Known& known = known_[slot];
    if (known.member != member.member) known = {.member = member.member};
    const double time = Seconds(member.unit_time_mean);
    const double off = known.rounds == 0 ? 0 : time / known.mean - 1;
    const double sudden = std::max(kSudden * std::sqrt(usual_spread_), change);
    if (known.rounds == 0 || std::abs(off) > sudden) {
      known.mean = time;
      known.rounds = 1;
      return;
    }
    ++known.rounds;
    known.spread += (off * off - known.spread) / std::min<double>(known.rounds - 1, kMemory);
    known.mean += known.mean * off / std::min<double>(known.rounds, kMemory);
  }

  std::vector<Known> known_;  // by slot
  double usual_spread_ = 0;
};

class Balance final : public WorkRule {
 public:
  explicit Balance(const BalanceOptions& options) : options_(options), equal_(MakeWorkNone()) {}

  std::string_view name() const override { return "balance"; }

  std::vector<std::uint32_t> Share(std::span<const WorkerView> members,
                                   std::uint32_t units) override {
    std::vector<Duration> unit_times;
    for (const WorkerView& member : members) unit_times.push_back(member.unit_time_mean);
    std::vector<std::uint32_t> shares;
    if (std::find(unit_times.begin(), unit_times.end(), Duration{}) != unit_times.end()) {
      shares = equal_->Share(members, units);  // until all are measured
    } else {
      unit_times = speeds_.Learn(members, options_.hysteresis);
      run_cost_ = MedianRunCost(members).value_or(0);
      shares = SharesBySpeed(unit_times, run_cost_, units);
      const bool same_members =
          units == units_ &&
          std::equal(members.begin(), members.end(), members_.begin(), members_.end(),
                     [](const WorkerView& a, const MemberId& b) { return a.member == b; });
      if (same_members && !Worthwhile(unit_times, shares)) shares = shares_;
      Probe(&shares);
    }
    members_.clear();
    for (const WorkerView& member : members) members_.push_back(member.member);
    units_ = units;
    shares_ = shares;
    return shares;
  }

  WorkVerdict Judge(const RoundView&) override { return {}; }

 private:
  bool Worthwhile(std::span<const Duration> unit_times,
                  std::span<const std::uint32_t> shares) const {
    return Seconds(LongestShare(unit_times, run_cost_, shares)) <
           Seconds(LongestShare(unit_times, run_cost_, shares_)) * (1 - options_.hysteresis);
  }

  // From the largest share.
  void Probe(std::vector<std::uint32_t>* shares) {
    if (std::find(shares->begin(), shares->end(), 0u) == shares->end()) {
      rounds_without_ = 0;
      return;
    }
    if (++rounds_without_ % kProbeEvery != 0) return;
    for (std::uint32_t& share : *shares) {
      std::uint32_t& largest = *std::max_element(shares->begin(), shares->end());
      if (share > 0 || largest < 2) continue;
      --largest;
      share = 1;
    }
  }

  const BalanceOptions options_;
  const std::unique_ptr<WorkRule> equal_;
  Speeds speeds_;
  std::vector<MemberId> members_;  // of the last plan
  std::uint32_t units_ = 0;
  double run_cost_ = 0;
  std::vector<std::uint32_t> shares_;
  std::uint32_t rounds_without_ = 0;
};

}  // namespace

// Each unit goes to who would be done with it first; that is optimal for units of one size.
std::vector<std::uint32_t> SharesBySpeed(std::span<const Duration> unit_times, double run_cost,
                                         std::uint32_t units) {
  using Load = std::pair<Duration, std::size_t>;  // when it would be done with one more
  std::vector<Load> heap;
  for (std::size_t i = 0; i < unit_times.size(); ++i) {
    heap.emplace_back(ShareTime(unit_times[i], run_cost, 1), i);
  }
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads(std::greater<>(),
                                                                     std::move(heap));
  std::vector<std::uint32_t> shares(unit_times.size(), 0);
  for (std::uint32_t unit = 0; unit < units && !loads.empty(); ++unit) {
    auto [end, worker] = loads.top();
    loads.pop();
    ++shares[worker];
    loads.emplace(end + unit_times[worker], worker);
  }
  return shares;
}

Duration LongestShare(std::span<const Duration> unit_times, double run_cost,
                      std::span<const std::uint32_t> shares) {
  Duration longest{};
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (shares[i] > 0) longest = std::max(longest, ShareTime(unit_times[i], run_cost, shares[i]));
  }
  return longest;
}

std::unique_ptr<WorkRule> MakeBalance(const BalanceOptions& options) {
  return std::make_unique<Balance>(options);
}

}  // namespace lockstep::policies
