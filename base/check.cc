#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace lockstep {

void CheckFailed(const char* file, int line, const char* expression, const std::string& message) {
  std::fprintf(stderr, "%s:%d: check failed: %s%s%s\n", file, line, expression,
               message.empty() ? "" : ": ", message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace lockstep
