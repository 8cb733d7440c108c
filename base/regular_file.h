// Files that a user or another program names: opened only when they are regular ones. A FIFO would
// have the caller wait for a writer for ever, a device may have no end.
#pragma once

#include <cstddef>
#include <fstream>
#include <string>

#include "base/result.h"

namespace lockstep {

// kNotFound, else kInvalid; the error names the file.
Result<std::ifstream> OpenRegularFile(const std::string& path);
// All of it; kInvalid when it has more than `most` bytes, of which none beyond is read.
Result<std::string> ReadRegularFile(const std::string& path, std::size_t most);

}  // namespace lockstep
