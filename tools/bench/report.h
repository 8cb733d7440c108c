// Figures from times, and their output.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"

namespace lockstep::bench {

// The smallest value that at least this share of the values does not exceed; 0 without values.
double Quantile(std::vector<double> values, double share);
inline double Median(std::vector<double> values) { return Quantile(std::move(values), 0.5); }

// Columns of right-aligned cells, the first row being their titles.
std::string Table(const std::vector<std::vector<std::string>>& rows);

// Checks before the measurement whether the file can be written.
Status CheckReport(const std::string& file);
// `file`: empty: nothing is written; "-": standard output.
Status WriteReport(const std::string& file, const std::string& text);

}  // namespace lockstep::bench
