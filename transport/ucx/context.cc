#include "transport/ucx/context.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sstream>

#include "transport/ucx/address.h"
#include "transport/ucx/library.h"
#include "transport/ucx/log.h"
#include "transport/ucx/path.h"
#include "transport/ucx/transport_list.h"

namespace lockstep::transport::ucx {
namespace {

// UCX's default of 20 s is the time until a death over shared memory or a lossy fabric is noticed.
constexpr const char* kKeepaliveInterval = "1s";

// `name` has no prefix UCX_; the environment overrules it.
void SetDefault(ucp_config_t* config, const std::string& name, const std::string& value) {
  if (std::getenv(("UCX_" + name).c_str()) != nullptr) return;
  const ucs_status_t status = ucp_config_modify(config, name.c_str(), value.c_str());
  if (status != UCS_OK) {
    spdlog::debug("ucx: {} stays as it is: {}", name, ucs_status_string(status));
  }
}

// Before 1.17 the options of a transport are named without its name, and then set it for every
// transport that has an option of that name.
bool TransportOptionsArePrefixed() { return LibraryHasMinor(17); }

void SetTcpDefault(ucp_config_t* config, const std::string& name, const std::string& value) {
  if (std::getenv(("UCX_TCP_" + name).c_str()) != nullptr) return;
  SetDefault(config, TransportOptionsArePrefixed() ? "TCP_" + name : name, value);
}

// Over TCP, UCX emulates puts. When a peer goes before it has acknowledged a put, UCX may still
// handle the acknowledgement after the connection has failed. Where UCX is built with assertions,
// as Debian's is, one of them (in tcp_ep.c, 1.13 to 1.22) then ends this process. Without puts,
// bulk goes as active messages, which are as fast in larger segments. Both ends must agree on the
// size of segments.
//
// Without a copy, an active message ends twice when the socket refuses the rest of it
// (uct_tcp_ep_sendv, 1.13 to 1.20), which ends the process in the same way. So over TCP messages
// are copied into UCX's segments. Before 1.17 the number of vectors, the only way to set that for
// TCP, would apply to cma too. There no transport sends active messages without a copy, and bulk
// over RDMA and shared memory does not use them.
void SetTcpDefaults(ucp_config_t* config) {
  SetTcpDefault(config, "PUT_ENABLE", "n");
  SetTcpDefault(config, "RX_SEG_SIZE", "256K");
  SetTcpDefault(config, "TX_SEG_SIZE", "256K");
  if (TransportOptionsArePrefixed()) {
    SetTcpDefault(config, "MAX_IOV", "0");
  } else {
    SetDefault(config, "ZCOPY_THRESH", "inf");
  }
}

// The text that `print` writes to the stream that it is given; empty where there is no memory for
// one.
std::string Printed(const std::function<void(std::FILE*)>& print) {
  char* text = nullptr;
  std::size_t bytes = 0;
  std::FILE* stream = open_memstream(&text, &bytes);
  if (stream == nullptr) return {};
  print(stream);
  std::fclose(stream);
  std::string printed(text, bytes);
  std::free(text);
  return printed;
}

// UCX_TLS from the environment and UCX's file. UCX has no other way to ask for it.
std::string TransportList(const ucp_config_t* config) {
  std::istringstream lines(Printed([config](std::FILE* stream) {
    ucp_config_print(config, stream, nullptr, UCS_CONFIG_PRINT_CONFIG);
  }));
  constexpr std::string_view kName = "UCX_TLS=";
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kName)) return line.substr(kName.size());
  }
  return "all";
}

Status StrikeTcp(ucp_config_t* config) {
  const std::string list = TransportList(config);
  const std::string kept = WithoutTcp(list);
  if (kept.empty()) {
    return Error{ErrorCode::kUnavailable, fmt::format("UCX_TLS={} allows nothing but tcp", list)};
  }
  if (kept == list) return {};
  if (list != "all") {
    spdlog::info("ucx: tcp is left out of UCX_TLS={}: its ports take anybody's bytes", list);
  }
  const ucs_status_t status = ucp_config_modify(config, "TLS", kept.c_str());
  if (status == UCS_OK) return {};
  return Error{ErrorCode::kUnavailable,
               fmt::format("UCX cannot leave tcp out: {}", ucs_status_string(status))};
}

Error Unavailable(const char* what, ucs_status_t status, const LogCapture& log) {
  std::string message =
      fmt::format("UCX {}: {}: {}", ucp_get_version_string(), what, ucs_status_string(status));
  if (!log.text().empty()) message += fmt::format(" ({})", log.text());
  return Error{ErrorCode::kUnavailable, message};
}

}  // namespace

std::string Describe(ucs_status_t status) { return ucs_status_string(status); }

Result<std::unique_ptr<Context>> Context::Open(const std::string& listen_host, Scope scope) {
  if (const Status opened = OpenLibrary(); !opened) return opened.error();
  LogCapture log;
  ucp_config_t* raw_config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &raw_config);
  if (status != UCS_OK) return Unavailable("its configuration cannot be read", status, log);
  const std::unique_ptr<ucp_config_t, decltype(ucp_config_release)> config(raw_config,
                                                                           ucp_config_release);
  // Without TCP the engine pings (Engine::PingAll).
  SetDefault(config.get(), "KEEPALIVE_INTERVAL",
             scope == Scope::kWithoutTcp ? "inf" : kKeepaliveInterval);
  if (scope == Scope::kAll) SetTcpDefaults(config.get());
  if (scope == Scope::kWithoutTcp) {
    if (const Status struck = StrikeTcp(config.get()); !struck) return struck.error();
  } else if (const auto host = SocketAddress::FromHost(listen_host, 0)) {
    const std::string device = host->LoopbackDevice();
    if (!device.empty()) SetDefault(config.get(), "NET_DEVICES", device);
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "lockstep";
  ucp_context_h handle = nullptr;
  status = ucp_init_version(kMajor, kOldestMinor, &params, config.get(), &handle);
  if (status != UCS_OK) return Unavailable("it does not start", status, log);
  std::unique_ptr<Context> context(new Context(handle));
  if (const Status queried = context->Query(); !queried) return queried.error();
  // This holds however the list was read.
  const auto tcp = [](const Way& way) { return way.transport == "tcp"; };
  if (scope == Scope::kWithoutTcp && std::ranges::any_of(context->ways_, tcp)) {
    return Error{ErrorCode::kUnavailable, "UCX takes its tcp although it was left out of UCX_TLS"};
  }
  // A start that succeeded may have a warning, for instance about a transport that UCX_TLS names in
  // vain.
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
  ReadPrintedContext(
      Printed([this](std::FILE* stream) { ucp_context_print_info(context_, stream); }), components_,
      ways_);
  return {};
}

Context::~Context() { ucp_cleanup(context_); }

// The lines that it reads: "#     component 4  :  ib" and "#      resource 1  :  md 1  dev 1  flags
// -- tcp/lo". UCX has no other way to ask for it.
void ReadPrintedContext(std::string_view printed, std::vector<std::string>& components,
                        std::vector<Way>& ways) {
  std::istringstream text{std::string(printed)};
  for (std::string line; std::getline(text, line);) {
    std::istringstream words(line);
    std::string hash;
    std::string kind;
    words >> hash >> kind;
    if (kind != "component" && kind != "resource") continue;
    std::string last;
    for (std::string word; words >> word;) last = word;
    if (kind == "component") {
      components.push_back(last);
      continue;
    }
    const auto slash = last.find('/');
    if (slash == std::string::npos) continue;
    Way way{last.substr(0, slash), last.substr(slash + 1), false};
    way.rdma = IsRdma(way.transport);
    if (std::ranges::find(ways, way) == ways.end()) ways.push_back(way);
  }
}

}  // namespace lockstep::transport::ucx
