// A signal that asks a program to end, and the same one again.
#pragma once

#include <chrono>

#include "base/time.h"

namespace lockstep {

// A first signal asks to end in good order, a second one does not wait for anything. timeout(1),
// and who ends programs as it does, sends a signal to the program and then to its process group,
// and so to the program once more: what comes so soon behind the first is no second one.
inline constexpr Duration kOneStopSignal = std::chrono::milliseconds(500);

}  // namespace lockstep
