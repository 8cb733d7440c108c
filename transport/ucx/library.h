// UCX's library, which is opened at its first use: so one program runs with UCX and without it.
//
// UCX's functions are variables here, with the names of its headers: calls in this namespace reach
// the library that was opened. The linker does not find functions that the list lacks.
#pragma once

#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>

#include <string>

#include "base/result.h"

#define LOCKSTEP_UCX_FUNCTIONS(FUNCTION)   \
  FUNCTION(ucp_am_recv_data_nbx)           \
  FUNCTION(ucp_am_send_nbx)                \
  FUNCTION(ucp_cleanup)                    \
  FUNCTION(ucp_config_modify)              \
  FUNCTION(ucp_config_print)               \
  FUNCTION(ucp_config_read)                \
  FUNCTION(ucp_config_release)             \
  FUNCTION(ucp_context_print_info)         \
  FUNCTION(ucp_context_query)              \
  FUNCTION(ucp_ep_close_nbx)               \
  FUNCTION(ucp_ep_create)                  \
  FUNCTION(ucp_ep_flush_nbx)               \
  FUNCTION(ucp_ep_print_info)              \
  FUNCTION(ucp_ep_query)                   \
  FUNCTION(ucp_get_version_string)         \
  FUNCTION(ucp_init_version)               \
  FUNCTION(ucp_listener_create)            \
  FUNCTION(ucp_listener_destroy)           \
  FUNCTION(ucp_listener_query)             \
  FUNCTION(ucp_listener_reject)            \
  FUNCTION(ucp_request_check_status)       \
  FUNCTION(ucp_request_free)               \
  FUNCTION(ucp_worker_arm)                 \
  FUNCTION(ucp_worker_create)              \
  FUNCTION(ucp_worker_destroy)             \
  FUNCTION(ucp_worker_get_address)         \
  FUNCTION(ucp_worker_get_efd)             \
  FUNCTION(ucp_worker_progress)            \
  FUNCTION(ucp_worker_release_address)     \
  FUNCTION(ucp_worker_set_am_recv_handler) \
  FUNCTION(ucp_worker_signal)              \
  FUNCTION(ucs_log_push_handler)           \
  FUNCTION(ucs_status_string)

namespace lockstep::transport::ucx {

// Null until the library has been opened, the same ever after.
// NOLINTNEXTLINE(bugprone-macro-parentheses): a name cannot be in them
#define LOCKSTEP_UCX_DECLARE(name) extern decltype(&::name) name;
LOCKSTEP_UCX_FUNCTIONS(LOCKSTEP_UCX_DECLARE)
#undef LOCKSTEP_UCX_DECLARE

// The oldest UCX that this works with, whatever headers it was built with.
inline constexpr unsigned kMajor = 1;
inline constexpr unsigned kOldestMinor = 13;

// Opens the library that the dynamic loader finds: in LD_LIBRARY_PATH, in the folder that UCX_ROOT
// chose at build, or in the system's. It does so once for the process and for good: UCX cannot be
// unloaded. Any thread may call it. kUnavailable, with the reason, where there is no library or an
// unsupported one.
Status OpenLibrary();

// The same with this file, where none has been opened yet; a name without a slash is searched.
Status OpenLibrary(const std::string& file);

// The version of the opened library.
bool LibraryHasMinor(unsigned minor);  // it is this one of UCX 1 or a later one
std::string LibraryFile();

}  // namespace lockstep::transport::ucx
