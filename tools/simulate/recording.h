// Keeps the reports of a simulated job.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "tools/simulate/simulation.h"

namespace lockstep::simulate {

struct Recording {
  // Takes the simulation's hooks for records, checkpoints and the log; it must outlive the run.
  void Attach(Simulation* simulation) {
    simulation->hooks.on_closed = [this](const auto& record) { records.push_back(record); };
    simulation->hooks.on_checkpoint = [this](const auto& state) { checkpoints.push_back(state); };
    simulation->hooks.on_log = [this, simulation](const coordinator::LogLine& line) {
      log.push_back(
          fmt::format("{:.6f} {}", Seconds(simulation->now() - Simulation::kStart), line.text));
      if (log.size() > kLogLines) log.pop_front();
    };
  }
  std::string LogText() const {
    std::string text;
    for (const std::string& line : log) text += line + "\n";
    return text;
  }

  static constexpr std::size_t kLogLines = 60;
  std::vector<std::shared_ptr<const coordinator::RoundRecord>> records;
  std::vector<coordinator::JobState> checkpoints;
  std::deque<std::string> log;  // the latest lines
};

}  // namespace lockstep::simulate
