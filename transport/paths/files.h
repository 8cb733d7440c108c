// Small files below /sys and /proc. Their contents come from others, so all of it has bounds.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::transport::paths {

// The first line, of at most 4 KiB, without white space at the end; unprintable bytes become '?'.
// It is empty where there is no such file.
std::string FirstLine(const std::filesystem::path& file);

// At most 4096 entries, sorted, by number where the names are numbers. It is empty where there is
// no such folder.
std::vector<std::filesystem::path> Entries(const std::filesystem::path& folder);

}  // namespace lockstep::transport::paths
