// Counts how often rare branches are taken, so that a hunt for faults can say which of them it has
// never reached. Sometimes assertions are from W. Wilson, "Testing distributed systems w/
// deterministic simulation", Strange Loop 2014.
//
//   if (nobody_answers) Sometimes<"fail-over: nobody answers">();
//
// A name is "GROUP: WHAT". Each name that a program has in it is known from its start on, with the
// count 0. Any thread; a call costs one relaxed addition, so it belongs into rare branches only.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace lockstep {

class SometimesBranch {
 public:
  explicit SometimesBranch(const char* name);
  SometimesBranch(const SometimesBranch&) = delete;
  SometimesBranch& operator=(const SometimesBranch&) = delete;

  void Reach() { count_.fetch_add(1, std::memory_order_relaxed); }

  // The counts of all branches in this process.
  static std::map<std::string, std::uint64_t> All();

 private:
  const char* const name_;
  SometimesBranch* const next_;  // registered before it
  std::atomic<std::uint64_t> count_{0};
};

template <std::size_t N>
struct BranchName {
  consteval BranchName(const char (&name)[N]) { std::copy_n(name, N, text); }  // NOLINT: implicit
  char text[N];
};

template <BranchName kName>
struct NamedBranch {
  static inline SometimesBranch branch{kName.text};
};

template <BranchName kName>
void Sometimes() {
  NamedBranch<kName>::branch.Reach();
}

}  // namespace lockstep
