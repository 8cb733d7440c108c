#include "tools/bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace lockstep::bench {

double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const double rank = std::ceil(share * static_cast<double>(values.size())) - 1;
  const auto at = values.begin() + std::max<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(rank), 0);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      text += fmt::format("{}{:>{}}", i == 0 ? "" : "  ", row[i], widths[i]);
    }
    text += '\n';
  }
  return text;
}

namespace {

Error CannotWrite(const std::string& file) {
  return {ErrorCode::kInvalid, fmt::format("--json {}: {}", file, std::strerror(errno))};
}

}  // namespace

Status CheckReport(const std::string& file) {
  if (file.empty() || file == "-") return {};
  std::FILE* out = std::fopen(file.c_str(), "ae");
  if (out == nullptr) return CannotWrite(file);
  std::fclose(out);
  return {};
}

Status WriteReport(const std::string& file, const std::string& text) {
  if (file.empty()) return {};
  std::FILE* out = file == "-" ? stdout : std::fopen(file.c_str(), "we");
  if (out == nullptr) return CannotWrite(file);
  bool written = std::fwrite(text.data(), 1, text.size(), out) == text.size();
  written = (out == stdout ? std::fflush(out) : std::fclose(out)) == 0 && written;
  if (written) return {};
  return Error{ErrorCode::kIo, fmt::format("{}: {}", file, std::strerror(errno))};
}

}  // namespace lockstep::bench
