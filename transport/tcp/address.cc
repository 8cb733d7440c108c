#include "transport/tcp/address.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>

namespace lockstep::transport::tcp {

using Endpoint = boost::asio::ip::tcp::endpoint;

std::optional<Endpoint> ParseAddress(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const std::string_view port_text = text.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  std::uint16_t port = 0;
  const auto [end, failed] =
      std::from_chars(port_text.data(), port_text.data() + port_text.size(), port);
  boost::system::error_code error;
  const auto ip = boost::asio::ip::make_address(std::string(host), error);
  if (error || failed != std::errc() || end != port_text.data() + port_text.size() || port == 0) {
    return std::nullopt;
  }
  return Endpoint(ip, port);
}

std::string FormatAddress(const Endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  return endpoint.address().is_v6() ? fmt::format("[{}]:{}", host, endpoint.port())
                                    : fmt::format("{}:{}", host, endpoint.port());
}

}  // namespace lockstep::transport::tcp
