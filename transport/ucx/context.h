// UCX's context: its configuration, and what the library can do.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "base/result.h"

namespace lockstep::transport::ucx {

// What UCX calls the status, as "Connection reset by remote peer".
std::string Describe(ucs_status_t status);

class Context {
 public:
  // Takes UCX's configuration as its file and the environment have it, with defaults of ours where
  // the environment says nothing: a shorter keep-alive interval, no puts over TCP, and no other
  // network device than the loopback one when `listen_host` is on that (UCX would open ports on all
  // of them). kUnavailable, with what UCX said, where UCX does not start.
  static Result<std::unique_ptr<Context>> Open(const std::string& listen_host);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  ucp_context_h get() const { return context_; }
  // Asked of the library: UCX without CUDA takes a device pointer silently and crashes on it.
  bool supports_cuda() const { return supports_cuda_; }

 private:
  explicit Context(ucp_context_h context) : context_(context) {}
  Status Query();

  ucp_context_h context_;
  bool supports_cuda_ = false;
};

}  // namespace lockstep::transport::ucx
