// TLS of the control plane, with a key that is derived from the job's secret. Internal.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <memory>

#include "base/result.h"
#include "transport/control/secret.h"
#include "transport/tls/psk.h"

namespace lockstep::transport::control {

using TlsRole = tls::Role;

class TlsContext {
 public:
  TlsContext(TlsRole role, const Secret& secret);

  boost::asio::ssl::context& context() { return context_; }

  // The reason of a failed handshake, in words for the user.
  static Error Explain(const boost::system::error_code& failure);

 private:
  boost::asio::ssl::context context_;
};

}  // namespace lockstep::transport::control
