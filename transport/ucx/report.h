// What the UCX library at hand is and finds on this machine, for people who ask.
#pragma once

#include <string>
#include <vector>

#include "transport/ucx/way.h"

namespace lockstep::transport::ucx {

struct Report {
  std::string built_with;               // the headers: "1.13"
  std::string version;                  // the library that runs: "1.13.1"; empty: there is none
  std::string library;                  // its file
  std::string error;                    // why it is not there or does not start; the rest is empty
  std::vector<std::string> components;  // what it was built with and could load: "ib", "cuda_cpy"
  std::vector<Way> ways;                // what it found and the environment allows
  bool cuda_memory = false;
};

// Opens a context and asks. Any thread; not inside a LogCapture.
Report Describe();

}  // namespace lockstep::transport::ucx
