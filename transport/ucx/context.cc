#include "transport/ucx/context.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstdlib>

#include "transport/ucx/address.h"
#include "transport/ucx/log.h"

namespace lockstep::transport::ucx {
namespace {

// UCX's default of 20 s is what a death over shared memory or a lossy fabric takes to be noticed.
constexpr const char* kKeepaliveInterval = "1s";

// `name` without the prefix UCX_, by which the environment goes before us.
void SetDefault(ucp_config_t* config, const std::string& name, const std::string& value) {
  if (std::getenv(("UCX_" + name).c_str()) != nullptr) return;
  const ucs_status_t status = ucp_config_modify(config, name.c_str(), value.c_str());
  if (status != UCS_OK) {
    spdlog::debug("ucx: {} stays as it is: {}", name, ucs_status_string(status));
  }
}

// The options of a transport are named without its name before 1.17.
void SetTcpDefault(ucp_config_t* config, const std::string& name, const std::string& value) {
  if (std::getenv(("UCX_TCP_" + name).c_str()) != nullptr) return;
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  const bool prefixed = major > 1 || minor >= 17;
  SetDefault(config, prefixed ? "TCP_" + name : name, value);
}

// Over TCP UCX emulates puts. When a peer goes while a put to it is not acknowledged yet, the
// acknowledgement may still be handled after the connection has failed, and where UCX is built with
// assertions, as Debian's is, one of them (in tcp_ep.c, 1.13 to 1.22) then ends this process.
// Without puts bulk takes active messages, which are as fast when they come in larger segments.
// Both ends must agree on the size of segments.
void SetTcpDefaults(ucp_config_t* config) {
  SetTcpDefault(config, "PUT_ENABLE", "n");
  SetTcpDefault(config, "RX_SEG_SIZE", "256K");
}

Error Unavailable(const char* what, ucs_status_t status, const LogCapture& log) {
  std::string message =
      fmt::format("UCX {}: {}: {}", ucp_get_version_string(), what, ucs_status_string(status));
  if (!log.text().empty()) message += fmt::format(" ({})", log.text());
  return Error{ErrorCode::kUnavailable, message};
}

}  // namespace

std::string Describe(ucs_status_t status) { return ucs_status_string(status); }

Result<std::unique_ptr<Context>> Context::Open(const std::string& listen_host) {
  LogCapture log;
  ucp_config_t* raw_config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &raw_config);
  if (status != UCS_OK) return Unavailable("its configuration cannot be read", status, log);
  const std::unique_ptr<ucp_config_t, decltype(&ucp_config_release)> config(raw_config,
                                                                            &ucp_config_release);
  SetDefault(config.get(), "KEEPALIVE_INTERVAL", kKeepaliveInterval);
  SetTcpDefaults(config.get());
  if (const auto host = SocketAddress::FromHost(listen_host, 0)) {
    const std::string device = host->LoopbackDevice();
    if (!device.empty()) SetDefault(config.get(), "NET_DEVICES", device);
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "lockstep";
  ucp_context_h handle = nullptr;
  status = ucp_init(&params, config.get(), &handle);
  if (status != UCS_OK) return Unavailable("it does not start", status, log);
  std::unique_ptr<Context> context(new Context(handle));
  if (const Status queried = context->Query(); !queried) return queried.error();
  // A warning of a start that succeeded, as of a transport that UCX_TLS names in vain.
  if (!log.text().empty()) spdlog::warn("ucx: {}", log.text());
  return context;
}

Status Context::Query() {
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  const ucs_status_t status = ucp_context_query(context_, &attributes);
  if (status != UCS_OK) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("UCX does not say which memory it knows: {}", Describe(status))};
  }
  supports_cuda_ = (attributes.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
  return {};
}

Context::~Context() { ucp_cleanup(context_); }

}  // namespace lockstep::transport::ucx
