// UCX's output goes into our log, not to standard output.
#pragma once

#include <string>

namespace lockstep::transport::ucx {

// Changes the log for the whole process: UCX's errors and warnings become our log lines at level
// debug, since important ones also reach us as a status. With UCX_LOG_LEVEL set by the user, UCX
// logs as it does by itself. It is idempotent.
void RouteUcxLog();

// While an object lives, the errors and warnings that UCX raises on this thread are kept in it
// instead. It does not nest.
class LogCapture {
 public:
  LogCapture();
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  // One line; empty when UCX was silent.
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace lockstep::transport::ucx
