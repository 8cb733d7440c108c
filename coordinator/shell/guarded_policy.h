// Rules of somebody else's, as a plug-in's: what one of them throws ends the job and not the
// process, and what they say is text.
#pragma once

#include <memory>
#include <string>

#include "policies/policy.h"

namespace lockstep::coordinator {

// Returns the same policy with Policy::threw. A rule that has thrown is not asked any more: nothing
// moves and no round closes until the job has ended.
policies::Policy Guarded(policies::Policy policy);

// Describes the exception that is being handled; call it in a catch block.
std::string WhatIsThrown();

}  // namespace lockstep::coordinator
