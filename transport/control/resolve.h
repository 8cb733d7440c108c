// Addresses that need a secret and those that do not.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <string>

#include "base/host_port.h"
#include "base/result.h"

namespace lockstep::transport::control {

bool IsLoopback(const boost::asio::ip::address& address);

// kInvalid: "10.0.0.1:7070: beyond loopback a --secret-file is required".
Error SecretRequired(const HostPort& address);

}  // namespace lockstep::transport::control
