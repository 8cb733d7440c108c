#include "base/log.h"

#include <memory>

#include <spdlog/sinks/stdout_color_sinks.h>

namespace lockstep {

void InitLogging(const std::string& process_name, const std::string& level) {
  // Not registered by name: a process may take a new one once it knows better who it is.
  auto logger = std::make_shared<spdlog::logger>(
      process_name, std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%H:%M:%S.%e %n %^%l%$ %v");
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(logger);
}

}  // namespace lockstep
