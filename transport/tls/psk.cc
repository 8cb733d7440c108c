#include "transport/tls/psk.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <utility>

#include "base/check.h"

namespace lockstep::transport::tls {
namespace {

constexpr std::string_view kIdentity = "lockstep";
constexpr char kCipher[] = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kCipherNumber[] = {0x13, 0x01};

void WipeKey(void* /*context*/, void* key, CRYPTO_EX_DATA* /*all*/, int /*index*/, long /*argl*/,
             void* /*argp*/) {
  auto* owned = static_cast<Key*>(key);
  if (owned == nullptr) return;
  OPENSSL_cleanse(owned->data(), owned->size());
  delete owned;
}

int KeyIndex() {
  static const int index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, WipeKey);
  return index;
}

// The session that stands for the key: OpenSSL takes an external PSK in this form.
SSL_SESSION* SessionOfKey(SSL* ssl) {
  const auto* key = static_cast<const Key*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), KeyIndex()));
  SSL_SESSION* session = SSL_SESSION_new();
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, kCipherNumber);
  const bool made = key != nullptr && session != nullptr && cipher != nullptr &&
                    SSL_SESSION_set1_master_key(session, key->data(), key->size()) == 1 &&
                    SSL_SESSION_set_cipher(session, cipher) == 1 &&
                    SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
  if (made) return session;
  SSL_SESSION_free(session);
  return nullptr;
}

int FindSession(SSL* ssl, const unsigned char* identity, std::size_t size, SSL_SESSION** session) {
  const std::string_view name(reinterpret_cast<const char*>(identity), size);
  *session = name == kIdentity ? SessionOfKey(ssl) : nullptr;
  return name != kIdentity || *session != nullptr ? 1 : 0;
}

int UseSession(SSL* ssl, const EVP_MD* digest, const unsigned char** identity, std::size_t* size,
               SSL_SESSION** session) {
  *session = nullptr;
  *identity = nullptr;
  *size = 0;
  // A second hello may have settled on another digest than the key's.
  if (digest != nullptr && EVP_MD_get_type(digest) != NID_sha256) return 1;
  *session = SessionOfKey(ssl);
  if (*session == nullptr) return 0;
  *identity = reinterpret_cast<const unsigned char*>(kIdentity.data());
  *size = kIdentity.size();
  return 1;
}

int HelloIndex() {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}

// OpenSSL calls it between any two steps of the handshake.
void TellOfHello(const SSL* ssl, int /*where*/, int /*value*/) {
  // The key's session is in force only once the hello's binder has been verified.
  if (SSL_session_reused(ssl) != 1) return;
  auto* then = static_cast<std::function<void()>*>(SSL_get_ex_data(ssl, HelloIndex()));
  if (*then) std::exchange(*then, nullptr)();
}

}  // namespace

Key DeriveKey(std::span<const std::byte> from, std::string_view salt, std::string_view info) {
  struct FreeKdf {
    void operator()(EVP_KDF* kdf) const { EVP_KDF_free(kdf); }
    void operator()(EVP_KDF_CTX* context) const { EVP_KDF_CTX_free(context); }
  };
  const std::unique_ptr<EVP_KDF, FreeKdf> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  LOCKSTEP_CHECK(kdf != nullptr, "OpenSSL has no HKDF");
  const std::unique_ptr<EVP_KDF_CTX, FreeKdf> context(EVP_KDF_CTX_new(kdf.get()));
  LOCKSTEP_CHECK(context != nullptr, "no memory for HKDF");
  // OpenSSL's parameters are not const, but they are only read.
  const auto text = [](std::string_view value) {
    return const_cast<void*>(static_cast<const void*>(value.data()));
  };
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, const_cast<char*>("SHA256"), 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, const_cast<std::byte*>(from.data()),
                                        from.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, text(salt), salt.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, text(info), info.size()),
      OSSL_PARAM_construct_end()};
  Key key{};
  const int derived = EVP_KDF_derive(context.get(), key.data(), key.size(), parameters);
  LOCKSTEP_CHECK(derived == 1, "HKDF failed");
  return key;
}

ContextPtr MakeContext(Role role, const Key& key) {
  ContextPtr context(
      SSL_CTX_new(role == Role::kServer ? TLS_server_method() : TLS_client_method()));
  LOCKSTEP_CHECK(context != nullptr, "no memory for TLS");
  SSL_CTX* raw = context.get();
  auto owned = std::make_unique<Key>(key);
  const bool set = SSL_CTX_set_ex_data(raw, KeyIndex(), owned.get()) == 1;
  LOCKSTEP_CHECK(set, "no memory for TLS");
  (void)owned.release();  // the context's now
  const bool fit = SSL_CTX_set_ciphersuites(raw, kCipher) == 1 &&
                   SSL_CTX_set_min_proto_version(raw, TLS1_3_VERSION) == 1;
  LOCKSTEP_CHECK(fit, "OpenSSL does not have {}", kCipher);
  // Only the key is trusted: no tickets, nothing to resume.
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(raw, SSL_OP_NO_TICKET);
  SSL_CTX_set_num_tickets(raw, 0);
  if (role == Role::kServer) {
    SSL_CTX_set_psk_find_session_callback(raw, FindSession);
  } else {
    SSL_CTX_set_psk_use_session_callback(raw, UseSession);
    // A peer that answers with a certificate instead is not believed: there is no authority.
    SSL_CTX_set_verify(raw, SSL_VERIFY_PEER, nullptr);
  }
  return context;
}

void OnHelloOfKey(SSL* ssl, std::function<void()>& then) {
  const bool set = SSL_set_ex_data(ssl, HelloIndex(), &then) == 1;
  LOCKSTEP_CHECK(set, "no memory for TLS");
  SSL_set_info_callback(ssl, TellOfHello);
}

bool ProvenByKey(SSL* ssl) { return SSL_session_reused(ssl) == 1; }

}  // namespace lockstep::transport::tls
