// Proof of the job's secret for single HTTP requests: HMAC-SHA-256 over the job's id, a fresh
// nonce, the method, the target and the body. Each nonce is good for one request, so nobody can
// replay a request that was overheard. The job's id is part of the proof, so a proof for one job is
// invalid for another job with the same secret. Nothing is encrypted.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/time.h"

namespace lockstep::coordinator {

class HttpProof {
 public:
  using Key = std::array<unsigned char, 32>;
  static constexpr Duration kNonceLife = std::chrono::seconds(30);
  static constexpr std::size_t kMostUsed = 4096;  // requests within a nonce's life

  // `key`: derived from the secret. Nonces carry their own seal, so handing them out costs no
  // memory, however many are asked for.
  HttpProof(const Key& key, std::string job_id);

  const std::string& job_id() const { return job_id_; }

  std::string Nonce(Time now) const;  // 64 hexadecimal digits
  // The error is one line for whoever asked. A nonce that was good is used up.
  Status Check(Time now, std::string_view nonce, std::string_view proof, std::string_view method,
               std::string_view target, std::string_view body);

 private:
  std::string Seal(std::string_view open) const;

  Key key_;
  std::string job_id_;
  Key own_;  // of this process, for the nonces
  std::map<std::string, Time> used_;
};

// Computes a client's proof, in hexadecimal digits.
std::string ProofOf(const HttpProof::Key& key, std::string_view job_id, std::string_view nonce,
                    std::string_view method, std::string_view target, std::string_view body);

}  // namespace lockstep::coordinator
