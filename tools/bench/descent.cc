#include "tools/bench/descent.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace lockstep::bench {
namespace {

// The second pass is for settings whose best value depends on a later one that changed.
constexpr std::size_t kPasses = 2;
// One comparison with this result is enough.
constexpr double kFarBehind = 1.15;
// A change with a smaller gain is not made: most of those are noise.
constexpr double kWorthIt = 0.97;

const std::string& ValueIn(const Choice& choice, const Knob& knob) {
  const auto found = choice.find(knob.name);
  return found == choice.end() ? knob.initial : found->second;
}

Choice With(Choice choice, const Knob& knob, const std::string& value) {
  if (value == knob.initial) {
    choice.erase(knob.name);
  } else {
    choice[knob.name] = value;
  }
  return choice;
}

}  // namespace

// For an even number, the lower middle one would favour the lucky ones.
double Middle(std::vector<double> ratios) {
  LOCKSTEP_CHECK(!ratios.empty(), "nothing was compared");
  std::ranges::sort(ratios);
  const std::size_t half = ratios.size() / 2;
  return ratios.size() % 2 == 1 ? ratios[half] : (ratios[half - 1] + ratios[half]) / 2;
}

std::size_t MostComparisons(const std::vector<Knob>& knobs, std::uint32_t pairs) {
  std::size_t values = 0;
  for (const Knob& knob : knobs) values += knob.values.size() - 1;
  return kPasses * values * pairs;
}

Result<Descent> Descend(const std::vector<Knob>& knobs, std::uint32_t pairs,
                        const std::function<bool(const Choice&)>& fits,
                        const std::function<Result<Comparison>(const Tried&)>& compare) {
  LOCKSTEP_CHECK(pairs > 0, "nothing is compared");
  Descent found;
  double best = 1;
  const auto known = [&](const Choice& choice) {
    return choice.empty() ||
           std::ranges::find(found.tried, choice, &Tried::choice) != found.tried.end();
  };
  for (std::size_t pass = 0; pass < kPasses; ++pass) {
    const Choice before = found.best;
    for (const Knob& knob : knobs) {
      const Choice from = found.best;
      for (const std::string& value : knob.values) {
        Tried tried{.choice = With(from, knob, value),
                    .knob = knob.name,
                    .value = value,
                    .ratios = {},
                    .failed = {}};
        if (value == ValueIn(from, knob) || known(tried.choice) || !fits(tried.choice)) continue;
        while (tried.ratios.size() < pairs) {
          const auto compared = compare(tried);
          if (!compared) return compared.error();
          tried.failed = compared->failed;
          if (!tried.failed.empty()) break;
          tried.ratios.push_back(compared->ratio);
          if (compared->ratio > kFarBehind * best) break;
        }
        if (tried.failed.empty() && tried.ratio() < kWorthIt * best) {
          best = tried.ratio();
          found.best = tried.choice;
        }
        found.tried.push_back(std::move(tried));
      }
    }
    if (found.best == before) break;
  }
  return found;
}

}  // namespace lockstep::bench
