// Writes a line of JSON by hand, for what is written in each round.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace lockstep::coordinator {

// A round of a thousand workers has thousands of units: a tree of values for each would take longer
// than the coordinator's core does.
class LineWriter {
 public:
  void Raw(std::string_view text) { out_.append(text); }
  void Number(std::uint64_t value) {
    const fmt::format_int digits(value);
    out_.append(digits.data(), digits.data() + digits.size());
  }
  void Text(const std::string& text) {
    if (text.empty()) return Raw("\"\"");
    Raw(nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  void Real(double value) {
    if (value == 1.0) return Raw("1.0");
    Raw(nlohmann::json(value).dump());
  }
  // Microseconds are enough for a person and keep the lines short.
  void Time(double seconds) {
    const auto micros = static_cast<std::int64_t>(std::llround(seconds * 1e6));
    std::uint64_t size = static_cast<std::uint64_t>(std::abs(micros));
    if (micros < 0) out_.push_back('-');
    Number(size / 1'000'000);
    size %= 1'000'000;
    out_.push_back('.');
    do {
      out_.push_back(static_cast<char>('0' + size / 100'000));
      size = size % 100'000 * 10;
    } while (size > 0);
  }
  void Range(const SampleRange& range) {
    out_.push_back('[');
    Number(range.from);
    out_.push_back(',');
    Number(range.to);
    out_.push_back(']');
  }
  void Ranges(const std::vector<SampleRange>& ranges) {
    List(ranges, [this](const SampleRange& range) { Range(range); });
  }
  template <class Items, class Write>
  void List(const Items& items, Write write) {
    const char* before = "[";
    for (const auto& item : items) {
      Raw(before);
      write(item);
      before = ",";
    }
    Raw(items.empty() ? "[]" : "]");
  }
  void TimesByWorker(const std::map<WorkerId, double>& times) {
    const char* before = "{";
    for (const auto& [worker, seconds] : times) {
      Raw(before);
      out_.push_back('"');
      Number(worker.value);
      Raw("\":");
      Time(seconds);
      before = ",";
    }
    Raw(times.empty() ? "{}" : "}");
  }
  std::string Take() { return fmt::to_string(out_); }

 private:
  fmt::memory_buffer out_;
};

}  // namespace lockstep::coordinator
