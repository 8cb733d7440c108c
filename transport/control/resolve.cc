#include "transport/control/resolve.h"

namespace lockstep::transport::control {

bool IsLoopback(const boost::asio::ip::address& address) {
  if (address.is_loopback()) return true;
  return address.is_v6() && address.to_v6().is_v4_mapped() &&
         boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, address.to_v6())
             .is_loopback();
}

Error SecretRequired(const HostPort& address) {
  return {ErrorCode::kInvalid, ToString(address) + ": beyond loopback a --secret-file is required"};
}

}  // namespace lockstep::transport::control
