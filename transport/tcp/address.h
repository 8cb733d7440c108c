// Addresses as transports hand them around: "127.0.0.1:4711", "[::1]:4711". Numbers only: no
// look-up can block here.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::transport::tcp {

std::optional<boost::asio::ip::tcp::endpoint> ParseAddress(std::string_view text);
std::string FormatAddress(const boost::asio::ip::tcp::endpoint& endpoint);

}  // namespace lockstep::transport::tcp
