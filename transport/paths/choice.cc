#include "transport/paths/choice.h"

namespace lockstep::transport::paths {

std::vector<Choice> Choose(std::string_view wanted, const Machine& machine) {
  if (wanted != "auto") return {{std::string(wanted), std::string(wanted), {}}};
  const Choice rdma =
      machine.AnyActivePort()
          ? Choice{"ucx", "ucx-rdma", {}}
          : Choice{"ucx",
                   {},
                   "its host has no active RDMA port, and UCX over TCP is for who names it"};
  return {rdma, {"tcp", "tcp", {}}};
}

}  // namespace lockstep::transport::paths
