#include "transport/mapping/device_sharing.h"

#include <algorithm>

namespace lockstep::transport {
namespace {

// The last one is always a zero.
template <std::size_t kSize>
void Put(std::string_view text, std::array<char, kSize>& into) {
  std::copy_n(text.begin(), std::min(text.size(), kSize - 1), into.begin());
}

template <std::size_t kSize>
std::string_view Text(const std::array<char, kSize>& of) {
  return {of.begin(), std::find(of.begin(), of.end(), '\0')};
}

template <std::size_t kSize>
bool Proper(const std::array<char, kSize>& text) {
  const auto end = std::find(text.begin(), text.end(), '\0');
  return end != text.end() &&
         std::all_of(text.begin(), end, [](char c) { return c > 0x20 && c < 0x7f; }) &&
         std::all_of(end, text.end(), [](char c) { return c == '\0'; });
}

}  // namespace

DeviceName DeviceName::Make(std::string_view kind, std::string_view unit) {
  DeviceName name;
  Put(kind, name.kind);
  Put(unit, name.unit);
  return name;
}

bool DeviceName::proper() const { return Proper(kind) && Proper(unit); }
std::string_view DeviceName::kind_text() const { return Text(kind); }
std::string_view DeviceName::unit_text() const { return Text(unit); }

}  // namespace lockstep::transport
