// What the UCX library at hand is and finds on this machine, for people who ask.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::transport::ucx {

struct Way {
  std::string transport;  // by UCX's name: "tcp", "rc_verbs"
  std::string device;     // "eth0", "mlx5_0:1"
  bool rdma = false;
  bool operator==(const Way&) const = default;
};

struct Report {
  std::string built_with;               // the headers: "1.13"
  std::string version;                  // the library that runs: "1.13.1"
  std::string error;                    // why it does not start; then the rest is empty
  std::vector<std::string> components;  // what it was built with and could load: "ib", "cuda_cpy"
  std::vector<Way> ways;                // what it found and the environment allows
  bool cuda_memory = false;
};

// Opens a context and asks. Any thread; not inside a LogCapture.
Report Describe();

// Components and ways out of what ucp_context_print_info prints.
void ReadPrintedContext(std::string_view printed, Report& report);

}  // namespace lockstep::transport::ucx
