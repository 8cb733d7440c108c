#include "transport/paths/files.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>

namespace lockstep::transport::paths {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxLine = 4096;
constexpr std::size_t kMaxEntries = 4096;

bool IsNumber(const std::string& name) {
  return !name.empty() &&
         std::ranges::all_of(name, [](unsigned char c) { return std::isdigit(c); });
}

}  // namespace

std::string FirstLine(const fs::path& path) {
  std::ifstream file(path);
  std::array<char, kMaxLine> bytes{};
  file.read(bytes.data(), bytes.size());
  std::string line(bytes.data(), static_cast<std::size_t>(file.gcount()));
  line.erase(std::min(line.find('\n'), line.size()));
  while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())) != 0) {
    line.pop_back();
  }
  std::ranges::replace_if(
      line, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return line;
}

std::vector<fs::path> Entries(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code none;
  for (fs::directory_iterator it(folder, none), end;
       !none && it != end && entries.size() < kMaxEntries; it.increment(none)) {
    entries.push_back(it->path());
  }
  std::ranges::sort(entries, [](const fs::path& a, const fs::path& b) {
    const std::string left = a.filename();
    const std::string right = b.filename();
    return left.size() != right.size() && IsNumber(left) && IsNumber(right)
               ? left.size() < right.size()
               : left < right;
  });
  return entries;
}

}  // namespace lockstep::transport::paths
