// The network between two workers: it gives the arrival time of messages. Machines are named by
// their numbers in the simulation.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/time.h"
#include "tools/simulate/fault.h"

namespace lockstep::simulate {

class DataNetwork {
 public:
  virtual ~DataNetwork() = default;
  // The time when `bytes` that leave now arrive. The carrier keeps the order of a connection.
  virtual Time Arrival(Time now, std::uint32_t from, std::uint32_t to, std::uint64_t bytes) = 0;
  // The time of one pass over so many bytes of memory: a sum, an update, a copy.
  virtual Duration Pass(std::uint64_t bytes) = 0;
  // Whether a transfer under way stands for bytes that come all the time, as over links that share
  // their bandwidth. False: nothing of it is seen before it arrives.
  virtual bool Flows() const { return false; }
};

// Short random times that depend on nothing, and faults: for finding rare orders of events.
class RandomNetwork final : public DataNetwork {
 public:
  explicit RandomNetwork(std::uint64_t seed) : random_(seed, 3) {}

  Time Arrival(Time now, std::uint32_t from, std::uint32_t to, std::uint64_t bytes) override;
  Duration Pass(std::uint64_t bytes) override;
  // It takes kPartition, kOneWay and kDelay, and ignores the others.
  void Inject(Time now, const Fault& fault);

 private:
  struct Trouble {
    Time partition_until;
    Time delay_until;
    Duration delay{};
  };
  RandomStream random_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, Trouble> troubles_;    // the lower number first
  std::map<std::pair<std::uint32_t, std::uint32_t>, Time> one_way_until_;  // from, to
};

// Latency and bandwidth. A machine's messages leave one after the other at its bandwidth, and
// arrive at a machine one after the other at its bandwidth.
struct NetworkOptions {
  Duration latency = std::chrono::microseconds(50);  // one way
  double bytes_per_second = 1.25e9;                  // of each machine, each way
  double memory_bytes_per_second = 1e10;             // read in one pass
  std::map<std::uint32_t, double> slow_links;        // machines with another bandwidth
  // A fat tree: machines in racks of so many. Traffic between racks goes through a link of its
  // rack, with 1 / oversubscription of the joint bandwidth of its machines, each way. Between the
  // racks there is no bottleneck. 0: one switch for all.
  std::uint32_t rack = 0;
  double oversubscription = 1;
  Duration message_cost{};  // of each message, at both ends

  double BandwidthOf(std::uint32_t machine) const {
    const auto slow = slow_links.find(machine);
    return slow == slow_links.end() ? bytes_per_second : slow->second;
  }
  // The bandwidth of a rack's link, each way.
  double RackBandwidth() const { return rack * bytes_per_second / oversubscription; }
};

class ModelNetwork final : public DataNetwork {
 public:
  ModelNetwork(NetworkOptions options, std::uint32_t machines);

  Time Arrival(Time now, std::uint32_t from, std::uint32_t to, std::uint64_t bytes) override;
  Duration Pass(std::uint64_t bytes) override;
  bool Flows() const override { return true; }

 private:
  const NetworkOptions options_;
  std::vector<double> seconds_per_byte_;  // by machine
  std::vector<Time> out_free_;
  std::vector<Time> in_free_;
  std::vector<Time> rack_out_free_;
  std::vector<Time> rack_in_free_;
};

}  // namespace lockstep::simulate
