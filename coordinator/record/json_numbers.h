// Reads numbers from JSON that others may have written. nlohmann's get<>() converts any number:
// 1e30 to an integer is undefined, and -1 becomes the largest one. These functions accept what
// fits, and else throw JsonRangeError with one line, which the readers turn into an Error.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

namespace lockstep::coordinator {

class JsonRangeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A whole number of 0 to `most`.
template <std::unsigned_integral T>
T CountFrom(const nlohmann::json& json, std::string_view what,
            T most = std::numeric_limits<T>::max()) {
  // A positive number is kept as unsigned when it is parsed, one with a point or an exponent never.
  if (json.is_number_unsigned()) {
    const std::uint64_t value = json.get<std::uint64_t>();
    if (value <= most) return static_cast<T>(value);
  }
  // A long text or a whole array would make it more than a line.
  throw JsonRangeError(json.is_number()
                           ? fmt::format("{} is {}, expected 0 to {}", what, json.dump(), most)
                           : fmt::format("{} is not a number", what));
}

// A number of -`most` to `most`.
template <std::floating_point T>
T NumberFrom(const nlohmann::json& json, std::string_view what,
             T most = std::numeric_limits<T>::max()) {
  if (!json.is_number()) throw JsonRangeError(fmt::format("{} is not a number", what));
  const double value = json.get<double>();
  if (!(value >= -static_cast<double>(most) && value <= static_cast<double>(most))) {
    throw JsonRangeError(
        fmt::format("{} is {}, expected {} to {}", what, json.dump(), -most, most));
  }
  return static_cast<T>(value);
}

}  // namespace lockstep::coordinator
