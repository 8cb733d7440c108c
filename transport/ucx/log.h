// What UCX has to say goes into our log, not to standard output.
#pragma once

#include <string>

namespace lockstep::transport::ucx {

// From here on, for the whole process: UCX's errors and warnings become log lines of ours at level
// debug, since whatever matters of them also reaches us as a status. With UCX_LOG_LEVEL set by the
// user UCX logs as it does by itself. Idempotent.
void RouteUcxLog();

// While one lives, the errors and warnings that UCX raises on this thread are kept here instead.
// Does not nest.
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
