// Digests of parameters: a fast one to compare replicas, and SHA-256 for what is written down.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

struct evp_md_ctx_st;

namespace lockstep::worker {

struct Digest128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  auto operator<=>(const Digest128&) const = default;
};

// A digest of the bits of `values`: replicas that differ in a bit differ in it, by all odds. The
// same on every machine, and part of what workers say to each other: its definition (digest.cc) may
// not change without a version. It finds accidents; it is no proof against somebody who looks for
// collisions.
Digest128 DigestOf(std::span<const float> values);

// SHA-256 (FIPS 180-4), piece by piece.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Update(std::span<const std::byte> bytes);
  // As FP32 little-endian, the form of params_digest in summary.json.
  void Update(std::span<const float> values);
  // Lower-case hexadecimal, 64 characters. Once, and no Update after it.
  std::string FinishHex();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace lockstep::worker
