// Finds the settings that make something quickest, by comparing with the defaults: coordinate
// descent, one setting after the other. It is pure: the caller measures.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace lockstep::bench {

// A setting and its values; `values` holds the default as well.
struct Knob {
  std::string name;
  std::string initial;
  std::vector<std::string> values;
};

// Settings that differ from their defaults.
using Choice = std::map<std::string, std::string>;

// Their median; for an even number of them, the mean of the middle two.
double Middle(std::vector<double> ratios);

struct Tried {
  Choice choice;
  std::string knob;  // the setting that was changed, and its value
  std::string value;
  std::vector<double> ratios;  // ratios of its times to those of the defaults
  std::string failed;          // why it cannot be used; empty: it can, and has ratios
  double ratio() const { return Middle(ratios); }
};

struct Descent {
  std::vector<Tried> tried;  // in order
  Choice best;               // empty: the defaults
};

// The most comparisons that Descend asks for.
std::size_t MostComparisons(const std::vector<Knob>& knobs, std::uint32_t pairs);

// The result of one comparison.
struct Comparison {
  double ratio = 0;    // ratio of the times
  std::string failed;  // as in Tried
};

// `fits`: whether such settings go together. `compare` measures them once, with the defaults before
// or after; its error ends the search. Each choice is compared `pairs` times, but only once if it
// is far behind or fails. A gain of less than 3 % does not count.
Result<Descent> Descend(const std::vector<Knob>& knobs, std::uint32_t pairs,
                        const std::function<bool(const Choice&)>& fits,
                        const std::function<Result<Comparison>(const Tried&)>& compare);

}  // namespace lockstep::bench
