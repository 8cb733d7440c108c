// SHA-256 of parameters, for files. (base/digest.h has the fast digest.)
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

struct evp_md_ctx_st;

namespace lockstep::worker {

// Computes SHA-256 (FIPS 180-4), piece by piece.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Update(std::span<const std::byte> bytes);
  // The values count as FP32 little-endian, the form of params_digest in summary.json.
  void Update(std::span<const float> values);
  // Returns lower-case hexadecimal, 64 characters. Call it once, and Update not after it.
  std::string FinishHex();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace lockstep::worker
