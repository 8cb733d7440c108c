#include "transport/control/tls.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <boost/asio/error.hpp>
#include <boost/asio/ssl/error.hpp>

namespace lockstep::transport::control {
namespace {

namespace ssl = boost::asio::ssl;

SSL_CTX* ContextFrom(TlsRole role, const Secret& secret) {
  tls::Key key = secret.Derive("control plane TLS 1.3 pre-shared key");
  tls::ContextPtr context = tls::MakeContext(role, key);
  OPENSSL_cleanse(key.data(), key.size());
  return context.release();
}

}  // namespace

TlsContext::TlsContext(TlsRole role, const Secret& secret) : context_(ContextFrom(role, secret)) {}

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
    case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:  // the alert that the other end sends then
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
      return wrong_secret;
    case SSL_R_WRONG_VERSION_NUMBER:  // its bytes are no TLS
      return {ErrorCode::kRefused, "the other end has no secret, this one has a --secret-file"};
    default:
      return {ErrorCode::kRefused, "TLS handshake: " + failure.message()};
  }
}

}  // namespace lockstep::transport::control
