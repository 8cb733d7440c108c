// TLS 1.3 with a key that both ends have (external PSK) and nothing else: no certificates.
// Internal.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <memory>

#include "base/result.h"
#include "transport/control/secret.h"

namespace lockstep::transport::control {

enum class TlsRole { kServer, kClient };

class TlsContext {
 public:
  TlsContext(TlsRole role, const Secret& secret);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  boost::asio::ssl::context& context() { return context_; }

  // Whether a finished handshake rests on the key. A peer could have offered a certificate instead.
  static bool ProvenByKey(SSL* ssl);
  // What a failed handshake means to the user.
  static Error Explain(const boost::system::error_code& failure);

 private:
  Secret::Key key_;
  boost::asio::ssl::context context_;
};

}  // namespace lockstep::transport::control
