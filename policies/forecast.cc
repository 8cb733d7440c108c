#include "policies/forecast.h"

#include <algorithm>
#include <span>

#include "policies/outlook.h"

namespace lockstep::policies {
namespace {

// A set must be better by this share of what is at stake: estimates are no more exact.
constexpr double kMargin = 0.02;
constexpr int kHalvings = 12;
constexpr double kRounding = 1e-6;  // of a unit
constexpr double kMostUnits = 1u << 30;

// Its computed units are on their way. If that takes longer than usual, as long again is expected.
Time ExpectedDelivery(const WorkerView& worker, Time now, Duration usual) {
  if (worker.finished_at || worker.parts.empty()) return now;
  const Duration spent = now - worker.parts.back().ready_at;
  return now + (spent > usual ? spent - usual : usual - spent);
}

}  // namespace

void ForecastWorkers(const RoundView& view, const std::vector<WorkerEstimate>& estimates,
                     Duration delivery, std::vector<WorkerForecast>* worker_forecasts) {
  Duration longest = delivery;  // of this round
  for (const WorkerView& worker : view.workers) {
    for (const PartView& part : worker.parts) {
      if (part.delivered_at) longest = std::max(longest, *part.delivered_at - part.ready_at);
    }
  }
  worker_forecasts->clear();
  for (std::size_t i = 0; i < view.workers.size(); ++i) {
    const WorkerView& worker = view.workers[i];
    const WorkerEstimate& estimate = estimates[i];
    WorkerForecast worker_forecast;
    worker_forecast.unit_time = estimate.unit_time;
    worker_forecast.can_help = estimate.can_help || worker.revoking;
    worker_forecast.begun_end = view.now;
    worker_forecast.helps_from = view.now + delivery;
    if (!worker.fenced && worker.units_given > 0 && !worker.finished_at) {
      worker_forecast.samples = static_cast<double>(worker.samples_given);
      for (const PartView& part : worker.parts) {
        worker_forecast.samples -= part.delivered_at ? static_cast<double>(part.samples) : 0;
      }
      if (Computed(worker)) {
        worker_forecast.begun_end = ExpectedDelivery(worker, view.now, longest);
      } else {
        // Units that it was asked to give back will move, too: they are unassigned.
        worker_forecast.movable =
            worker.revoking ? worker.units_given - Begun(worker) : estimate.movable;
        worker_forecast.begun_end = worker_forecast.helps_from =
            std::max(view.now, estimate.end - estimate.promised -
                                   QueueTime(worker, worker_forecast.movable, estimate.unit_time)) +
            delivery;
      }
    }
    worker_forecasts->push_back(worker_forecast);
  }
}

// The earliest time by which all have done what is begun and have room for all that can move.
double Forecast::EndOf(std::size_t count) const {
  const std::span<const Load> loads(loads_.data(), count);
  std::uint64_t units = 0;
  double least = 0;
  double most = 0;
  for (const Load& load : loads) {
    units += load.movable;
    least = std::max(least, load.begun_end);
    most = std::max(most, load.end);
  }
  const auto enough = [&](double end) {
    std::uint64_t room = 0;
    for (const Load& load : loads) {
      const double units_until = std::max(end - load.helps_from, 0.0) * load.units_per_second;
      room += static_cast<std::uint32_t>(std::min(units_until + kRounding, load.most));
    }
    return room >= units;
  };
  if (enough(least)) return least;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (least + most) / 2;
    (enough(middle) ? most : least) = middle;
  }
  return most;
}

const std::vector<bool>& Forecast::LeftOut(const std::vector<WorkerForecast>& worker_forecasts,
                                           Time now, double rate, double spare) {
  out_.assign(worker_forecasts.size(), false);
  loads_.clear();
  double least = spare;
  for (std::size_t i = 0; i < worker_forecasts.size(); ++i) {
    const WorkerForecast& worker_forecast = worker_forecasts[i];
    if (worker_forecast.samples > 0) least = std::min(least, worker_forecast.samples);
    loads_.push_back(
        {Seconds(worker_forecast.begun_end - now), Seconds(worker_forecast.helps_from - now),
         Seconds(worker_forecast.end() - now),
         1 / Seconds(std::max(worker_forecast.unit_time, Duration(1))), worker_forecast.movable,
         worker_forecast.can_help ? kMostUnits : static_cast<double>(worker_forecast.movable), i});
  }
  const double whole = EndOf(loads_.size());
  end_ = whole_ = now + FromSeconds(whole);
  lost_ = 0;
  if (least <= 0 || rate * whole <= least) return out_;
  const auto late = std::stable_partition(loads_.begin(), loads_.end(), [&](const Load& l) {
    return worker_forecasts[l.worker].samples <= 0;
  });
  std::sort(late, loads_.end(), [](const Load& a, const Load& b) {
    return a.end != b.end ? a.end < b.end : a.worker > b.worker;
  });
  const auto kept = static_cast<std::size_t>(late - loads_.begin());
  std::size_t best_left = loads_.size();
  double best = 0;
  double lost = 0;
  std::size_t look = 1;
  for (std::size_t left = loads_.size(); left > kept; --left) {
    lost += worker_forecasts[loads_[left - 1].worker].samples;
    if (lost > spare) break;
    const std::size_t count = loads_.size() - left + 1;
    if (count < look) continue;
    look = count + 1 + count / 2;
    const double end = EndOf(left - 1);
    const double gain = rate * (whole - end) * (1 - kMargin) - lost;
    if (gain <= best) continue;
    best = gain;
    best_left = left - 1;
    end_ = now + FromSeconds(end);
    lost_ = lost;
  }
  for (std::size_t i = best_left; i < loads_.size(); ++i) out_[loads_[i].worker] = true;
  return out_;
}

}  // namespace lockstep::policies
