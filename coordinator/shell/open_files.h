#pragma once

#include <cstdint>

#include "base/result.h"

namespace lockstep::coordinator {

// Raises the process' limit of open files to what a job of so many workers takes, as far as the
// hard limit lets it. An error says what is needed and allowed.
Status AllowOpenFiles(std::uint32_t workers);

}  // namespace lockstep::coordinator
