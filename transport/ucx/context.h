// UCX's context: its configuration, and the library's abilities.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "transport/ucx/way.h"

namespace lockstep::transport::ucx {

// UCX's name of the status, such as "Connection reset by remote peer".
std::string Describe(ucs_status_t status);

// The transports of UCX that a context has.
enum class Scope : std::uint8_t {
  kAll,         // what the configuration allows
  kWithoutTcp,  // the same without `tcp`, whose ports accept memory writes from any client
};

class Context {
 public:
  // Takes UCX's configuration from its file and the environment, with defaults of ours where the
  // environment sets nothing. There are no puts over TCP. kAll has a shorter keep-alive interval.
  // It also has no network device but the loopback one when `listen_host` is on that (UCX would
  // open ports on all). Without TCP, UCX's keep-alive is off. kUnavailable, with the reason, where
  // there is no UCX (OpenLibrary), where it does not start, and where nothing is left without TCP.
  static Result<std::unique_ptr<Context>> Open(const std::string& listen_host, Scope scope);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  ucp_context_h get() const { return context_; }
  // The library was asked: UCX without CUDA takes a device pointer silently and crashes on it.
  bool supports_cuda() const { return supports_cuda_; }
  // The components that UCX was built with and could load: "ib", "cuda_cpy".
  const std::vector<std::string>& components() const { return components_; }
  // The transports and devices that it found and its configuration allows.
  const std::vector<Way>& ways() const { return ways_; }

 private:
  explicit Context(ucp_context_h context) : context_(context) {}
  Status Query();

  ucp_context_h context_;
  bool supports_cuda_ = false;
  std::vector<std::string> components_;
  std::vector<Way> ways_;
};

// Reads components and ways out of the text of ucp_context_print_info.
void ReadPrintedContext(std::string_view printed, std::vector<std::string>& components,
                        std::vector<Way>& ways);

}  // namespace lockstep::transport::ucx
