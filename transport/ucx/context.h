// UCX's context: its configuration, and what the library can do.
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

// What UCX calls the status, as "Connection reset by remote peer".
std::string Describe(ucs_status_t status);

// Which of UCX's transports a context has.
enum class Scope : std::uint8_t {
  kAll,         // what the configuration allows
  kWithoutTcp,  // the same without `tcp`, whose ports take memory writes from whoever reaches them
};

class Context {
 public:
  // Takes UCX's configuration as its file and the environment have it, with defaults of ours where
  // the environment says nothing: no puts over TCP; with kAll a shorter keep-alive interval, and no
  // other network device than the loopback one when `listen_host` is on that (UCX would open ports
  // on all of them); without TCP no keep-alive of UCX's. kUnavailable, with the reason, where there
  // is no UCX (OpenLibrary), where it does not start, and where nothing is left without TCP.
  static Result<std::unique_ptr<Context>> Open(const std::string& listen_host, Scope scope);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  ucp_context_h get() const { return context_; }
  // Asked of the library: UCX without CUDA takes a device pointer silently and crashes on it.
  bool supports_cuda() const { return supports_cuda_; }
  // What UCX was built with and could load: "ib", "cuda_cpy".
  const std::vector<std::string>& components() const { return components_; }
  // What it found and its configuration allows.
  const std::vector<Way>& ways() const { return ways_; }

 private:
  explicit Context(ucp_context_h context) : context_(context) {}
  Status Query();

  ucp_context_h context_;
  bool supports_cuda_ = false;
  std::vector<std::string> components_;
  std::vector<Way> ways_;
};

// Components and ways out of what ucp_context_print_info prints.
void ReadPrintedContext(std::string_view printed, std::vector<std::string>& components,
                        std::vector<Way>& ways);

}  // namespace lockstep::transport::ucx
