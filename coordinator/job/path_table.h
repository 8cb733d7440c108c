// The paths between members, as they report them: for each pair, in words and in GB/s. A pair
// takes two bytes, and eight more once a rate of the reporter's was measured.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"

namespace lockstep::coordinator {

class PathTable {
 public:
  explicit PathTable(std::uint32_t slots) : slots_(slots), rows_(slots) {}

  void Set(WorkerId from, WorkerId to, const std::string& words, double gb_per_second);
  void Forget(WorkerId worker);  // its own, and others' to it

  struct Path {
    const std::string* words = nullptr;
    double gb_per_second = 0;
  };
  std::optional<Path> Find(WorkerId from, WorkerId to) const;
  bool Has(WorkerId from) const { return !rows_[from.value].words.empty(); }

  // The slowest measured one; 0: none was measured.
  double Slowest() const;
  // There are some, and all are mapped memory.
  bool AllMapped() const { return paths_ > 0 && mapped_ == paths_; }

 private:
  // Paths of a job have few different words. So many are kept apart; all others are the last ones.
  static constexpr std::uint16_t kMostWords = 4096;
  struct Row {
    std::vector<std::uint16_t> words;  // by slot: 0, or one more than the place in words_
    std::vector<double> rates;         // by slot; empty: all 0
  };
  std::uint16_t Numbered(const std::string& words);
  void Erase(Row& row, std::uint32_t to);
  bool IsMapped(std::uint16_t words) const { return words_[words - 1u].starts_with("mapped"); }

  const std::uint32_t slots_;
  std::vector<Row> rows_;  // by slot
  std::vector<std::string> words_;
  std::uint16_t last_ = 0;  // number that was found last: most are alike
  std::uint64_t paths_ = 0;
  std::uint64_t mapped_ = 0;
  mutable std::optional<double> slowest_ = 0;  // nullopt: it has to be looked for
};

}  // namespace lockstep::coordinator
