#include "tools/simulate/coordinator_deaths.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/check.h"
#include "tools/simulate/process.h"

namespace lockstep::simulate {

bool Reattaches(const coordinator::StartParameters& start) {
  return start.config.job.coordinator_timeout_s != 0;
}

// The file keeps the last entries when it is rewritten; here it always is.
void Simulation::CoordinatorDeaths::Note(const coordinator::JournalEntry& entry) {
  constexpr std::size_t kKept = 4;
  std::erase_if(journal_, [&](const auto& e) {
    return e.state.next_round > entry.state.next_round ||
           (entry.attempt && e.state.next_round == entry.state.next_round);
  });
  journal_.push_back(entry);
  if (journal_.size() > kKept) journal_.erase(journal_.begin());
  const auto& on_taken_over = simulation_->hooks.on_taken_over;
  if (std::exchange(taking_over_, false) && on_taken_over) on_taken_over(entry.state);
}

// A user who resumes a job first ends its remaining processes.
void Simulation::CoordinatorDeaths::EndJob(Duration length) {
  if (!simulation_->disk_ || down_ || simulation_->result_) return;
  down_ = true;
  simulation_->ForgetCoordinator();
  for (const std::unique_ptr<Process>& process : simulation_->processes_) {
    process->closed = true;
    simulation_->Kill(process.get(), false);
  }
  simulation_->queue_.After(length, [this] { Resume(); });
}

void Simulation::CoordinatorDeaths::Resume() {
  journal_.clear();
  down_ = last_commit_ = false;
  simulation_->StartNextCoordinator(journal_);
  if (simulation_->hooks.on_resumed) simulation_->hooks.on_resumed(*simulation_->disk_);
  for (std::uint32_t m = 0; m < simulation_->machines_.size(); ++m) {
    const Process* last = simulation_->machines_[m].process;
    const auto wanted = last != nullptr && last->self ? std::optional(last->self->worker)
                                                      : std::optional<WorkerId>();
    simulation_->StartProcess(m, wanted,
                              std::chrono::milliseconds(simulation_->random_.NextBelow(300)));
  }
}

// Before anything was noted the next one would begin the job anew; after the last commit there is
// nothing to go on with.
void Simulation::CoordinatorDeaths::DieAlone(Duration length) {
  if (down_ || simulation_->result_) return;
  if (!Reattaches(simulation_->start_)) return EndJob(length);
  if (journal_.empty() || last_commit_) return;
  down_ = true;
  simulation_->ForgetCoordinator();
  if (simulation_->hooks.on_crashed) simulation_->hooks.on_crashed();
  next_ = simulation_->now() + length;
  for (const std::unique_ptr<Process>& process : simulation_->processes_) {
    if (process->dead || process->closed) continue;
    process->LoseCoordinator(process->LoseConnection(simulation_->random_.NextBelow(2) == 0));
  }
  simulation_->queue_.After(length, [this] { TakeOver(); });
}

// The coordinator that carries out its last action is replaced behind it.
void Simulation::CoordinatorDeaths::HandOver() {
  LOCKSTEP_CHECK(!down_ && !journal_.empty() && !last_commit_,
                 "a coordinator hands over what nobody can go on with");
  simulation_->queue_.After(Duration{}, [this] { DieAlone(Duration{}); });
}

void Simulation::CoordinatorDeaths::TakeOver() {
  next_.reset();
  taking_over_ = true;
  down_ = last_commit_ = false;
  simulation_->StartNextCoordinator(journal_);
}

}  // namespace lockstep::simulate
