// Decides which addresses need a secret.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <string>

#include "base/host_port.h"
#include "base/result.h"

namespace lockstep::transport::control {

bool IsLoopback(const boost::asio::ip::address& address);

// The error kInvalid: "10.0.0.1:7070: beyond loopback a --secret-file is required".
Error SecretRequired(const HostPort& address);

}  // namespace lockstep::transport::control
