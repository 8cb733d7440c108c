#include "transport/ucx/log.h"

#include <spdlog/spdlog.h>
#include <ucs/config/types.h>
#include <ucs/debug/log_def.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "base/check.h"
#include "transport/ucx/library.h"

namespace lockstep::transport::ucx {
namespace {

thread_local std::string* t_capture = nullptr;

ucs_log_func_rc_t HandleLog(const char* /*file*/, unsigned /*line*/, const char* /*function*/,
                            ucs_log_level_t level, const ucs_log_component_config_t* /*config*/,
                            const char* format, va_list arguments) {
  if (level != UCS_LOG_LEVEL_ERROR && level != UCS_LOG_LEVEL_WARN) {
    return UCS_LOG_FUNC_RC_CONTINUE;
  }
  std::array<char, 512> text{};
  if (std::vsnprintf(text.data(), text.size(), format, arguments) < 0) text[0] = '\0';
  std::string line(text.data());
  for (char& c : line) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  if (t_capture == nullptr) {
    spdlog::debug("ucx says: {}", line);
  } else {
    if (!t_capture->empty()) *t_capture += "; ";
    *t_capture += line;
  }
  return UCS_LOG_FUNC_RC_STOP;
}

}  // namespace

void RouteUcxLog() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (std::getenv("UCX_LOG_LEVEL") == nullptr) ucs_log_push_handler(&HandleLog);
  });
}

LogCapture::LogCapture() {
  LOCKSTEP_CHECK(t_capture == nullptr, "captures of UCX's log do not nest");
  RouteUcxLog();
  t_capture = &text_;
}

LogCapture::~LogCapture() { t_capture = nullptr; }

}  // namespace lockstep::transport::ucx
