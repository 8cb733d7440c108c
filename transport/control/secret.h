// The job's secret: a file that all members have. Keys are derived from all of its bytes, a line
// break at the end included.
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

  // `bytes` has at least kMinBytes.
  explicit Secret(std::span<const std::byte> bytes);
  ~Secret();
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;

  // A key for one purpose (HKDF-SHA-256); keys of different purposes reveal nothing about each
  // other.
  Key Derive(std::string_view purpose) const;

 private:
  Key root_;
};

struct SecretFile {
  Secret secret;
  std::string warning;  // not empty: a line for the log, when others can read the file
};

// Returns kInvalid with one line that names the file: it is missing, no file, or shorter than
// kMinBytes.
Result<SecretFile> ReadSecretFile(const std::string& path);

}  // namespace lockstep::transport::control
