#include "policies/forecast.h"

#include <algorithm>
#include <cmath>

#include "policies/outlook.h"

namespace lockstep::policies {
namespace {

// A set must be better by this share of what is at stake: estimates are no more exact.
constexpr double kMargin = 0.02;
constexpr int kHalvings = 14;

// What it has computed is on its way: for as long again as that takes longer than usual.
Time ExpectedDelivery(const WorkerView& worker, Time now, Duration usual) {
  if (worker.finished_at || worker.parts.empty()) return now;
  const Duration spent = now - worker.parts.back().ready_at;
  return now + (spent > usual ? spent - usual : usual - spent);
}

}  // namespace

void TakeProspects(const RoundView& view, const std::vector<Sight>& sights, Duration delivery,
                   std::vector<Prospect>* prospects) {
  Duration longest = delivery;  // of this round
  for (const WorkerView& worker : view.workers) {
    for (const PartView& part : worker.parts) {
      if (part.delivered_at) longest = std::max(longest, *part.delivered_at - part.ready_at);
    }
  }
  prospects->clear();
  for (std::size_t i = 0; i < view.workers.size(); ++i) {
    const WorkerView& worker = view.workers[i];
    const Sight& sight = sights[i];
    Prospect prospect;
    prospect.unit_time = sight.unit_time;
    prospect.can_help = sight.can_help || worker.revoking;
    prospect.begun_end = view.now;
    prospect.helps_from = view.now + delivery;
    if (!worker.fenced && worker.units_given > 0 && !worker.finished_at) {
      prospect.samples = static_cast<double>(worker.samples_given);
      for (const PartView& part : worker.parts) {
        prospect.samples -= part.delivered_at ? static_cast<double>(part.samples) : 0;
      }
      if (Computed(worker)) {
        prospect.begun_end = ExpectedDelivery(worker, view.now, longest);
      } else {
        // What it was asked to give back will move, too.
        prospect.movable = worker.revoking ? worker.units_given - Begun(worker) : sight.movable;
        prospect.begun_end = prospect.helps_from =
            std::max(view.now, sight.end - sight.unit_time * prospect.movable) + delivery;
      }
    }
    prospects->push_back(prospect);
  }
}

Time Forecast::EndWithout(const std::vector<Prospect>& prospects, Time now) const {
  std::uint64_t units = 0;
  Time least = now;
  Time most = now;
  for (std::size_t i = 0; i < prospects.size(); ++i) {
    if (out_[i]) continue;
    units += prospects[i].movable;
    least = std::max(least, prospects[i].begun_end);
    most = std::max(most, prospects[i].end());
  }
  const auto enough = [&](Time end) {
    std::uint64_t room = 0;
    for (std::size_t i = 0; i < prospects.size(); ++i) {
      const Prospect& prospect = prospects[i];
      if (out_[i] || prospect.helps_from > end) continue;
      const auto more = static_cast<std::uint64_t>((end - prospect.helps_from) /
                                                   std::max(prospect.unit_time, Duration(1)));
      room += prospect.can_help ? more : std::min<std::uint64_t>(more, prospect.movable);
      if (room >= units) return true;
    }
    return room >= units;
  };
  if (enough(least)) return least;
  for (int i = 0; i < kHalvings; ++i) {
    const Time middle = least + (most - least) / 2;
    (enough(middle) ? most : least) = middle;
  }
  return most;
}

const std::vector<bool>& Forecast::LeftOut(const std::vector<Prospect>& prospects, Time now,
                                           double rate, double spare) {
  out_.assign(prospects.size(), false);
  best_ = out_;
  end_ = whole_ = EndWithout(prospects, now);
  lost_ = 0;
  order_.clear();
  double least = spare;
  for (std::size_t i = 0; i < prospects.size(); ++i) {
    if (prospects[i].samples <= 0) continue;
    least = std::min(least, prospects[i].samples);
    order_.push_back(i);
  }
  if (order_.empty() || least <= 0 || rate * Seconds(whole_ - now) <= least) return best_;
  std::sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
    const Time x = prospects[a].end();
    const Time y = prospects[b].end();
    return x != y ? x > y : a < b;
  });
  double best = 0;
  double lost = 0;
  std::size_t look = 1;
  for (std::size_t k = 0; k < order_.size(); ++k) {
    lost += prospects[order_[k]].samples;
    if (lost > spare) break;
    out_[order_[k]] = true;
    if (k + 1 < look) continue;
    look = k + 2 + (k + 1) / 4;
    const Time end = EndWithout(prospects, now);
    const double gain = rate * Seconds(whole_ - end) * (1 - kMargin) - lost;
    if (gain <= best) continue;
    best = gain;
    best_ = out_;
    end_ = end;
    lost_ = lost;
  }
  return best_;
}

}  // namespace lockstep::policies
