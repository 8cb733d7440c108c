#include "transport/mapping/address.h"

#include <fmt/format.h>
#include <openssl/rand.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <fstream>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"

namespace lockstep::transport {
namespace {

constexpr std::string_view kScheme = "mapping";
constexpr std::string_view kUnknown = "-";

std::string ReadBoot() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  if (!(file >> boot)) return std::string(kUnknown);
  std::erase(boot, '-');
  return boot;
}

std::string ReadNetns() {
  struct stat status {};
  if (stat("/proc/self/ns/net", &status) != 0) return std::string(kUnknown);
  return std::to_string(status.st_ino);
}

bool Differ(const std::string& a, const std::string& b) {
  return a != b && a != kUnknown && b != kUnknown;
}

}  // namespace

MappingAddress MappingAddress::Make() {
  std::array<unsigned char, 16> random{};
  LOCKSTEP_CHECK(RAND_bytes(random.data(), random.size()) == 1, "no random bytes to be had");
  std::string name = "lockstep-arena-";
  for (const unsigned char byte : random) name += fmt::format("{:02x}", byte);
  return {ReadBoot(), ReadNetns(), std::move(name)};
}

std::string MappingAddress::Format() const {
  return fmt::format("{}:{}:{}:{}", kScheme, boot, netns, name);
}

Result<MappingAddress> MappingAddress::Parse(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(':', at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  const bool printable = std::ranges::all_of(text, [](char c) { return c > 0x20 && c < 0x7f; });
  if (parts.size() != 4 || parts[0] != kScheme || !printable ||
      std::ranges::any_of(parts, &std::string::empty) ||
      parts[3].size() + 1 > sizeof(sockaddr_un::sun_path)) {
    return Error{ErrorCode::kInvalid, printable && text.size() < 256
                                          ? fmt::format("'{}' is not the address of an arena", text)
                                          : "not the address of an arena"};
  }
  return MappingAddress{parts[1], parts[2], parts[3]};
}

Status MappingAddress::CheckReach() const {
  if (Differ(boot, ReadBoot())) {
    return Error{ErrorCode::kUnavailable, "the peer is on another host"};
  }
  if (Differ(netns, ReadNetns())) {
    return Error{ErrorCode::kUnavailable, "the peer is in another network namespace of this host"};
  }
  return {};
}

MappingAddress::Socket MappingAddress::ToSocket() const {
  Socket socket;
  LOCKSTEP_CHECK(name.size() + 1 <= sizeof(socket.address.sun_path));
  socket.address.sun_family = AF_UNIX;
  std::ranges::copy(name, socket.address.sun_path + 1);
  socket.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return socket;
}

}  // namespace lockstep::transport
