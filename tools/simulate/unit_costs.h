// Reads the time of each unit of a job on a worker of speed 1. The times belong to the data:
// a unit that moves to another worker, or comes again in a later round, keeps its own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "base/result.h"

namespace lockstep::simulate {

// The lines of a file `round,unit,seconds`.
struct CostTable {
  std::uint32_t rounds = 0;     // at least one
  std::uint32_t units = 0;      // of each round; at least one
  std::vector<double> seconds;  // by round, then unit
};

// Each round from 0 on must have the same units, from 0 on. Errors are kInvalid or kNotFound, with
// one line.
Result<CostTable> ReadCostTable(const std::string& path);
// `name` stands for the file in messages.
Result<CostTable> ParseCostTable(std::string_view text, const std::string& name);

// How a full round of so many samples is cut into units, of which job.units wants so many.
std::uint32_t UnitsOfRound(std::uint64_t samples, std::uint32_t wanted);

class UnitCosts {
 public:
  // Fresh units of a round of so many samples are as many as the table's.
  UnitCosts(CostTable table, std::uint64_t round_samples, std::uint64_t epoch_samples);

  // The seconds of these samples. The rounds into which epochs are planned as long as nothing comes
  // again take the table's rounds in turn. A unit that is cut differently has its share of each.
  double SecondsOf(Epoch epoch, const SampleRange& range) const;

 private:
  CostTable table_;
  std::uint64_t round_samples_;
  std::uint64_t epoch_samples_;
};

}  // namespace lockstep::simulate
