#include "base/log.h"

#include <csignal>
#include <memory>

#include <spdlog/sinks/stdout_color_sinks.h>

namespace lockstep {

void InitLogging(const std::string& process_name, const std::string& level) {
  // A process takes a new name once it knows its own identity, and other threads may log by then.
  // So the logger stays, and only the pattern changes (spdlog locks that).
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>(
        "lockstep", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->flush_on(spdlog::level::trace);
    spdlog::set_default_logger(made);
    return made;
  }();
  logger->set_pattern("%H:%M:%S.%e " + process_name + " %^%l%$ %v");
  logger->set_level(spdlog::level::from_str(level));
}

void OutliveFailedWrites() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

}  // namespace lockstep
