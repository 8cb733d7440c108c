// A signal that asks a program to end, and its repetition.
#pragma once

#include <chrono>

#include "base/time.h"

namespace lockstep {

// A first signal asks to end in good order; a second one does not wait for anything. timeout(1) and
// similar programs send a signal to the program and then to its process group, and so twice to the
// program. So a repetition this soon after the first does not count as the second.
inline constexpr Duration kOneStopSignal = std::chrono::milliseconds(500);

}  // namespace lockstep
