#include "coordinator/job/path_table.h"

#include <algorithm>

namespace lockstep::coordinator {

std::uint16_t PathTable::Numbered(const std::string& words) {
  if (last_ > 0 && words_[last_ - 1u] == words) return last_;
  const auto found = std::ranges::find(words_, words);
  if (found == words_.end()) {
    if (words_.size() == kMostWords) return kMostWords;
    words_.push_back(words_.size() + 1 == kMostWords ? std::string("one of many others") : words);
    last_ = static_cast<std::uint16_t>(words_.size());
  } else {
    last_ = static_cast<std::uint16_t>(found - words_.begin() + 1);
  }
  return last_;
}

void PathTable::Set(WorkerId from, WorkerId to, const std::string& words, double gb_per_second) {
  Row& row = rows_[from.value];
  if (row.words.empty()) row.words.resize(slots_);
  Erase(row, to.value);
  const std::uint16_t number = Numbered(words);
  row.words[to.value] = number;
  ++paths_;
  mapped_ += IsMapped(number) ? 1 : 0;
  if (gb_per_second == 0 && row.rates.empty()) return;
  if (row.rates.empty()) row.rates.resize(slots_);
  row.rates[to.value] = gb_per_second;
  if (gb_per_second <= 0 || !slowest_) return;
  slowest_ = *slowest_ == 0 ? gb_per_second : std::min(*slowest_, gb_per_second);
}

void PathTable::Erase(Row& row, std::uint32_t to) {
  if (row.words.empty() || row.words[to] == 0) return;
  --paths_;
  mapped_ -= IsMapped(row.words[to]) ? 1 : 0;
  row.words[to] = 0;
  if (row.rates.empty() || row.rates[to] == 0) return;
  row.rates[to] = 0;
  slowest_.reset();
}

void PathTable::Forget(WorkerId worker) {
  for (std::uint32_t to = 0; to < slots_; ++to) Erase(rows_[worker.value], to);
  rows_[worker.value] = {};
  for (Row& row : rows_) Erase(row, worker.value);
}

std::optional<PathTable::Path> PathTable::Find(WorkerId from, WorkerId to) const {
  const Row& row = rows_[from.value];
  if (row.words.empty() || row.words[to.value] == 0) return std::nullopt;
  return Path{&words_[row.words[to.value] - 1u], row.rates.empty() ? 0 : row.rates[to.value]};
}

double PathTable::Slowest() const {
  if (slowest_) return *slowest_;
  double slowest = 0;
  for (const Row& row : rows_) {
    for (const double rate : row.rates) {
      if (rate > 0 && (slowest == 0 || rate < slowest)) slowest = rate;
    }
  }
  slowest_ = slowest;
  return slowest;
}

}  // namespace lockstep::coordinator
