#include "transport/control/tls.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <boost/asio/error.hpp>
#include <boost/asio/ssl/error.hpp>
#include <cstring>
#include <string_view>

namespace lockstep::transport::control {
namespace {

namespace ssl = boost::asio::ssl;

constexpr std::string_view kIdentity = "lockstep";
constexpr char kCipher[] = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kCipherNumber[] = {0x13, 0x01};

int KeyIndex() {
  static const int index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}

// The session that stands for the key: the way in which OpenSSL takes an external PSK.
SSL_SESSION* SessionOfKey(SSL* ssl) {
  const auto* key =
      static_cast<const Secret::Key*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), KeyIndex()));
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

}  // namespace

TlsContext::TlsContext(TlsRole role, const Secret& secret)
    : key_(secret.Derive("control plane TLS 1.3 pre-shared key")),
      context_(role == TlsRole::kServer ? ssl::context::tlsv13_server
                                        : ssl::context::tlsv13_client) {
  SSL_CTX* raw = context_.native_handle();
  const bool set = SSL_CTX_set_ex_data(raw, KeyIndex(), &key_) == 1 &&
                   SSL_CTX_set_ciphersuites(raw, kCipher) == 1 &&
                   SSL_CTX_set_min_proto_version(raw, TLS1_3_VERSION) == 1;
  LOCKSTEP_CHECK(set, "OpenSSL does not have {}", kCipher);
  // The key is all there is to trust: no tickets, nothing to resume.
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(raw, SSL_OP_NO_TICKET);
  SSL_CTX_set_num_tickets(raw, 0);
  if (role == TlsRole::kServer) {
    SSL_CTX_set_psk_find_session_callback(raw, FindSession);
  } else {
    SSL_CTX_set_psk_use_session_callback(raw, UseSession);
    // Whoever answers with a certificate instead is not believed: there is no authority.
    SSL_CTX_set_verify(raw, SSL_VERIFY_PEER, nullptr);
  }
}

TlsContext::~TlsContext() { OPENSSL_cleanse(key_.data(), key_.size()); }

bool TlsContext::ProvenByKey(SSL* ssl) { return SSL_session_reused(ssl) == 1; }

Error TlsContext::Explain(const boost::system::error_code& failure) {
  const Error wrong_secret{ErrorCode::kRefused,
                           "wrong secret: the --secret-file of the other end has other contents"};
  if (failure == boost::asio::error::eof || failure == ssl::error::stream_truncated ||
      failure == boost::asio::error::connection_reset) {
    return {ErrorCode::kClosed, "the other end closed the connection during the TLS handshake"};
  }
  if (failure.category() != boost::asio::error::get_ssl_category()) {
    return {ErrorCode::kClosed, "TLS handshake: " + failure.message()};
  }
  switch (ERR_GET_REASON(static_cast<unsigned long>(failure.value()))) {
    case SSL_R_BINDER_DOES_NOT_VERIFY:
    case SSL_R_BAD_PSK:
    case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:  // what the other end says then
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
      return wrong_secret;
    case SSL_R_WRONG_VERSION_NUMBER:  // its bytes are no TLS
      return {ErrorCode::kRefused, "the other end has no secret, this one has a --secret-file"};
    default:
      return {ErrorCode::kRefused, "TLS handshake: " + failure.message()};
  }
}

}  // namespace lockstep::transport::control
