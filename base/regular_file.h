// Opens files that a user or another program names, but only regular ones. A FIFO would have the
// caller wait for a writer for ever, and a device may have no end.
#pragma once

#include <cstddef>
#include <fstream>
#include <string>

#include "base/result.h"

namespace lockstep {

// Returns kNotFound, else kInvalid; the error names the file.
Result<std::ifstream> OpenRegularFile(const std::string& path);
// Returns the whole file; kInvalid when it has more than `most` bytes. It reads none beyond them.
Result<std::string> ReadRegularFile(const std::string& path, std::size_t most);

}  // namespace lockstep
