#include "coordinator/http/proof.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <charconv>
#include <utility>

#include "base/check.h"

namespace lockstep::coordinator {
namespace {

constexpr std::size_t kOpenDigits = 32;  // of a nonce: 16 for the time, 16 of chance
constexpr std::size_t kSealDigits = 32;

std::string Hmac(const HttpProof::Key& key, std::string_view text) {
  std::array<unsigned char, 32> mac{};
  unsigned int size = mac.size();
  LOCKSTEP_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                      reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(),
                      &size) != nullptr,
                 "HMAC failed");
  std::string digits;
  for (const unsigned char byte : mac) digits += fmt::format("{:02x}", byte);
  return digits;
}

bool Same(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void Fill(unsigned char* bytes, std::size_t count) {
  LOCKSTEP_CHECK(RAND_bytes(bytes, static_cast<int>(count)) == 1,
                 "the system gives no random numbers");
}

}  // namespace

std::string ProofOf(const HttpProof::Key& key, std::string_view job_id, std::string_view nonce,
                    std::string_view method, std::string_view target, std::string_view body) {
  return Hmac(key, fmt::format("lockstep-http v2\n{}\n{}\n{}\n{}\n{}", job_id, nonce, method,
                               target, body));
}

HttpProof::HttpProof(const Key& key, std::string job_id)
    : key_(key), job_id_(std::move(job_id)), own_() {
  Fill(own_.data(), own_.size());
}

std::string HttpProof::Seal(std::string_view open) const {
  return Hmac(own_, open).substr(0, kSealDigits);
}

std::string HttpProof::Nonce(Time now) const {
  std::uint64_t chance = 0;
  Fill(reinterpret_cast<unsigned char*>(&chance), sizeof chance);
  const std::string open = fmt::format(
      "{:016x}{:016x}", static_cast<std::uint64_t>(now.time_since_epoch().count()), chance);
  return open + Seal(open);
}

Status HttpProof::Check(Time now, std::string_view nonce, std::string_view proof,
                        std::string_view method, std::string_view target, std::string_view body) {
  const auto refused = [](std::string text) { return Error{ErrorCode::kRefused, std::move(text)}; };
  std::erase_if(used_, [now](const auto& entry) { return entry.second <= now; });
  if (nonce.empty() || proof.empty())
    return refused("changes need a proof of the job's secret (--secret-file of tools/ctl)");
  std::uint64_t ns = 0;
  const bool ours = nonce.size() == kOpenDigits + kSealDigits &&
                    Same(Seal(nonce.substr(0, kOpenDigits)), nonce.substr(kOpenDigits)) &&
                    std::from_chars(nonce.data(), nonce.data() + 16, ns, 16).ec == std::errc();
  if (!ours) return refused("the nonce is none of this coordinator");
  const Time made{Duration(static_cast<std::int64_t>(ns))};
  if (now - made >= kNonceLife) return refused("the nonce is too old");
  if (!Same(ProofOf(key_, job_id_, nonce, method, target, body), proof))
    return refused(
        "wrong secret: the --secret-file of the coordinator has other contents, or the change was "
        "meant for another job");
  if (used_.size() >= kMostUsed) return refused("too many changes at once, try again later");
  if (!used_.emplace(nonce, made + kNonceLife).second)
    return refused("the nonce has been used already");
  return {};
}

}  // namespace lockstep::coordinator
