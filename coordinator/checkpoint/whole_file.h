// A file that is there as a whole or not at all.
#pragma once

#include <filesystem>
#include <string_view>

#include "base/result.h"

namespace lockstep::coordinator {

// Writes `path`.tmp, syncs it, renames it, syncs the directory. After an error the old file stays
// and the temporary one is gone.
Status WriteWholeFile(const std::filesystem::path& path, std::string_view text);

}  // namespace lockstep::coordinator
