// The job's secret: a file that all members have. Keys are derived from its bytes, all of them, a
// line break at the end included.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "transport/tls/psk.h"

namespace lockstep::transport::control {

class Secret {
 public:
  static constexpr std::size_t kMinBytes = 16;
  using Key = tls::Key;

  // At least kMinBytes.
  explicit Secret(std::span<const std::byte> bytes);
  ~Secret();
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;

  // A key for one purpose (HKDF-SHA-256); keys of different purposes tell nothing of each other.
  Key Derive(std::string_view purpose) const;

 private:
  Key root_;
};

struct SecretFile {
  Secret secret;
  std::string warning;  // not empty: a line for the log, when others can read the file
};

// kInvalid with one line that names the file: missing, no file, shorter than kMinBytes.
Result<SecretFile> ReadSecretFile(const std::string& path);

}  // namespace lockstep::transport::control
