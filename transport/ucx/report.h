// The present UCX library and its transports on this machine, for people who ask.
#pragma once

#include <string>
#include <vector>

#include "transport/ucx/way.h"

namespace lockstep::transport::ucx {

struct Report {
  std::string built_with;               // the headers: "1.13"
  std::string version;                  // the library that runs: "1.13.1"; empty: there is none
  std::string library;                  // its file
  std::string error;                    // why it is missing or does not start; the rest is empty
  std::vector<std::string> components;  // components that it was built with and could load: "ib",
                                        // "cuda_cpy"
  std::vector<Way> ways;                // ways that it found and the environment allows
  bool cuda_memory = false;
};

// Opens a context and asks it. Any thread may call it, but not inside a LogCapture.
Report Describe();

}  // namespace lockstep::transport::ucx
