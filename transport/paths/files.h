// Small files below /sys and /proc. What stands in them is others', so all of it has bounds.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::transport::paths {

// At most 4 KiB, white space at the end left out, bytes that no line should have as '?'. Empty
// where there is no such file.
std::string FirstLine(const std::filesystem::path& file);

// At most 4096, sorted, by number where the names are numbers. Empty where there is no such folder.
std::vector<std::filesystem::path> Entries(const std::filesystem::path& folder);

}  // namespace lockstep::transport::paths
