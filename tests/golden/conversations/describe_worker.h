// What a worker's core does and says to its peers, in words, one line each; empty: not worth one.
#pragma once

#include <string>

#include "worker/core/step_io.h"

namespace lockstep::simulate {

std::string Describe(const MemberId& worker, const worker::Event& event);
std::string Describe(const MemberId& worker, const worker::Action& action);

}  // namespace lockstep::simulate
