// Invariants that stay on in release builds. A failed check is a bug of Lockstep, never of a user
// or a peer: it prints what was violated and ends the process with SIGABRT.
#pragma once

#include <fmt/format.h>

#include <string>

namespace lockstep {

// Prints "file:line: check failed: expression: message" to standard error and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* expression,
                              const std::string& message);

}  // namespace lockstep

// LOCKSTEP_CHECK(x > 0, "queue {} is empty", name): evaluated in every build type.
#define LOCKSTEP_CHECK(condition, ...)                                                        \
  do {                                                                                        \
    if (!(condition)) [[unlikely]] {                                                          \
      ::lockstep::CheckFailed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
    }                                                                                         \
  } while (false)
