// The time of one exchange by each algorithm on a modelled network, with every message carried and
// nothing else under way. It serves up to some thousands of workers.
#pragma once

#include <cstdint>

#include "base/messages.h"
#include "base/time.h"
#include "tools/simulate/data_network.h"

namespace lockstep::simulate {

struct ExchangeTimes {
  Duration summed{};  // from all parts sealed, until the last owner has its sums
  Duration taken{};   // from there until the last worker has all sums
  Duration all() const { return summed + taken; }
};

struct ExchangeOfAll {
  ExchangeAlgorithm algorithm = ExchangeAlgorithm::kDirect;
  std::uint32_t workers = 2;               // all of them contribute and own
  std::uint64_t bytes = 4;                 // bytes of the parameters, and of each contribution
  std::uint64_t piece_bytes = 1u << 20;    // exchange.piece_bytes
  std::uint64_t inline_bytes = 32u << 10;  // as in worker::MachineConfig
};

ExchangeTimes TimesOf(const ExchangeOfAll& exchange, const NetworkOptions& network);

}  // namespace lockstep::simulate
