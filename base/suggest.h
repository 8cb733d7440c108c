// "Did you mean": the known word nearest to a mistyped one.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

// The fewest insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
std::size_t EditDistance(std::string_view a, std::string_view b);

// The word of `known` with the smallest distance, the first of several; empty when none is near. A
// word is near if at most a third of its characters differ, or if it begins the known one. A dotted
// word's last component is compared as well, so that "job.workers" finds "backup.workers".
std::string Nearest(std::string_view word, std::span<const std::string> known);

// "model.name: 'nlp' is not one of softmax, mlp, cnn; did you mean 'mlp'?", without the question
// when none is near. `known` is not empty.
std::string NotOneOf(std::string_view key, std::string_view word,
                     std::span<const std::string> known);

// "softmax, mlp, cnn".
std::string Listed(std::span<const std::string> words);

}  // namespace lockstep
