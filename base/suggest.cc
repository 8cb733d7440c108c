#include "base/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace lockstep {
namespace {

std::string_view LastComponent(std::string_view word) {
  const auto dot = word.rfind('.');
  return dot == std::string_view::npos ? word : word.substr(dot + 1);
}

// A guess that shares little with the word misleads more than none.
bool IsNear(std::string_view word, std::string_view candidate, std::size_t twice_the_distance) {
  constexpr std::size_t kLeastBeginning = 3;
  if (LastComponent(word) == LastComponent(candidate)) return true;
  if (word.size() >= kLeastBeginning && candidate.starts_with(word)) return true;
  return 3 * twice_the_distance <= 2 * std::max(word.size(), candidate.size());
}

}  // namespace

std::size_t EditDistance(std::string_view a, std::string_view b) {
  // Rows i-2, i-1 and i of the table of distances between prefixes.
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

std::string Nearest(std::string_view word, std::span<const std::string> known) {
  // Nobody mistypes at such length; the table of distances stays small for any input.
  constexpr std::size_t kLongest = 128;
  word = word.substr(0, kLongest);
  const std::string_view last = LastComponent(word);
  std::string nearest;
  std::size_t best = static_cast<std::size_t>(-1);
  for (const std::string& candidate : known) {
    std::size_t distance = 2 * EditDistance(word, candidate);
    // The right key in the wrong section is nearer than a key that merely looks alike.
    if (last == LastComponent(candidate)) distance = std::min<std::size_t>(distance, 3);
    if (distance < best && IsNear(word, candidate, distance)) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string NotOneOf(std::string_view key, std::string_view word,
                     std::span<const std::string> known) {
  const std::string text = fmt::format("{}: '{}' is not one of {}", key, word, Listed(known));
  const std::string near = Nearest(word, known);
  return near.empty() ? text : fmt::format("{}; did you mean '{}'?", text, near);
}

// This replaces fmt::join: g++ 12 takes its inherited parser for a buffer overflow.
std::string Listed(std::span<const std::string> words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

}  // namespace lockstep
