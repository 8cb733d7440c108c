#include "tools/simulate/data_network.h"

#include <algorithm>

namespace lockstep::simulate {

Time RandomNetwork::Arrival(Time now, std::uint32_t from, std::uint32_t to, std::uint64_t) {
  Time arrives = now + std::chrono::microseconds(20 + random_.NextBelow(300));
  if (const auto held = one_way_until_.find({from, to}); held != one_way_until_.end()) {
    arrives = std::max(arrives, held->second);
  }
  const auto found = troubles_.find(std::minmax(from, to));
  if (found == troubles_.end()) return arrives;
  const Trouble& trouble = found->second;
  if (now < trouble.delay_until) {
    arrives += Duration(random_.NextBelow(static_cast<std::uint64_t>(trouble.delay.count()) + 1));
  }
  if (now < trouble.partition_until) arrives += trouble.partition_until - now;
  return arrives;
}

Duration RandomNetwork::Pass(std::uint64_t) {
  return std::chrono::microseconds(10 + random_.NextBelow(150));
}

void RandomNetwork::Inject(Time now, const Fault& fault) {
  if (fault.kind == FaultKind::kOneWay) {
    Time& until = one_way_until_[{fault.machine, fault.other}];
    until = std::max(until, now + fault.length);
  }
  if (fault.kind != FaultKind::kPartition && fault.kind != FaultKind::kDelay) return;
  Trouble& trouble = troubles_[std::minmax(fault.machine, fault.other)];
  if (fault.kind == FaultKind::kPartition) {
    trouble.partition_until = std::max(trouble.partition_until, now + fault.length);
  } else {
    trouble.delay_until = now + std::chrono::seconds(1);
    trouble.delay = fault.length;
  }
}

ModelNetwork::ModelNetwork(NetworkOptions options, std::uint32_t machines)
    : options_(std::move(options)), out_free_(machines), in_free_(machines) {
  for (std::uint32_t m = 0; m < machines; ++m) {
    seconds_per_byte_.push_back(1 / options_.BandwidthOf(m));
  }
  if (options_.rack == 0) return;
  rack_out_free_.resize(machines / options_.rack + 1);
  rack_in_free_.resize(rack_out_free_.size());
}

Time ModelNetwork::Arrival(Time now, std::uint32_t from, std::uint32_t to, std::uint64_t bytes) {
  const auto take = [&](double per_byte) {
    return options_.message_cost + FromSeconds(static_cast<double>(bytes) * per_byte);
  };
  Time& out = out_free_[from];
  Time& in = in_free_[to];
  const Time leaves = std::max(now, out);
  out = leaves + take(seconds_per_byte_[from]);
  Time through = out;
  if (options_.rack > 0 && from / options_.rack != to / options_.rack) {
    const Duration takes = FromSeconds(static_cast<double>(bytes) / options_.RackBandwidth());
    // Many share it, so one slow message does not keep it busy.
    for (Time* link : {&rack_out_free_[from / options_.rack], &rack_in_free_[to / options_.rack]}) {
      *link = std::max(leaves, *link) + takes;
      through = std::max(through, *link);
    }
  }
  // It arrives while it leaves: both ends are busy at the same time when nothing blocks it.
  in = std::max({leaves + options_.latency + take(seconds_per_byte_[to]),
                 in + take(seconds_per_byte_[to]), through + options_.latency});
  return in;
}

Duration ModelNetwork::Pass(std::uint64_t bytes) {
  return std::chrono::microseconds(1) +
         FromSeconds(static_cast<double>(bytes) / options_.memory_bytes_per_second);
}

}  // namespace lockstep::simulate
