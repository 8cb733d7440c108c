// UCX_TLS, the list of the transports that UCX may use, without `tcp`.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::transport::ucx {

// "rc,tcp,self" becomes "rc,self", "all" and "^rc" become "^tcp" and "^rc,tcp". The result is empty
// when the list names nothing else. A caller that must not have tcp also checks the transports that
// UCX then took.
std::string WithoutTcp(std::string_view list);

}  // namespace lockstep::transport::ucx
