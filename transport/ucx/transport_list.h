// UCX_TLS, the list of the transports that UCX may use, without `tcp`.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::transport::ucx {

// "rc,tcp,self" becomes "rc,self", "all" and "^rc" become "^tcp" and "^rc,tcp". Empty: the list
// names nothing else. Who must not have tcp looks at what UCX then took as well.
std::string WithoutTcp(std::string_view list);

}  // namespace lockstep::transport::ucx
