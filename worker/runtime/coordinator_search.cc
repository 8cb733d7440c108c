#include "worker/runtime/coordinator_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/options.h"

namespace lockstep::worker {
namespace {

// How long one look waits for a coordinator before the program has a turn.
constexpr Duration kLook = std::chrono::seconds(2);
constexpr Duration kShortLook = std::chrono::milliseconds(100);

}  // namespace

Duration CoordinatorPatience(const JobConfig& config) {
  const double seconds = config.job.coordinator_timeout_s;
  return FromSeconds(seconds >= 0 ? seconds : 3 * config.liveness.timeout_s);
}

CoordinatorSearch::CoordinatorSearch(SessionOptions options, const msg::Welcome& followed,
                                     Duration patience, std::string lost, ComputeQueue& compute,
                                     std::function<msg::RunInHand()> run_in_hand)
    : options_(std::move(options)),
      followed_(followed),
      patience_(patience),
      lost_(std::move(lost)),
      compute_(compute),
      run_in_hand_(std::move(run_in_hand)) {
  options_.wanted = followed.self.worker;
  spdlog::warn(
      "{}; this worker keeps its parameters and looks for the next coordinator at {}, for at "
      "most {} (job.coordinator_timeout)",
      lost_, options_.coordinator, FormatDurationSeconds(Seconds(patience_)));
}

Result<bool> CoordinatorSearch::Look() {
  const Duration left = began_ + patience_ - MonotonicNow();
  options_.connect_timeout = std::clamp<Duration>(left, kShortLook, kLook);
  found_.channel = std::make_unique<CoordinatorChannel>(compute_);
  auto joined = Join(options_, *found_.channel, run_in_hand_);
  const std::string why = joined ? WhyNot(joined->welcome) : joined.error().message;
  if (joined && why.empty()) {
    found_.welcome = std::move(joined->welcome);
    return true;
  }
  // A coordinator of an earlier term, which was stopped and goes on, is not followed by anybody.
  Leave(why);
  found_.channel.reset();
  const bool refused = !joined && joined.error().code == ErrorCode::kRefused;
  if (left > Duration{} && !refused) return false;
  return Error{ErrorCode::kUnavailable,
               fmt::format("{}; no coordinator took over within {} "
                           "(job.coordinator_timeout): {}",
                           lost_, FormatDurationSeconds(Seconds(patience_)), why)};
}

void CoordinatorSearch::Leave(const std::string& reason) {
  if (found_.channel && found_.channel->link) found_.channel->link->Send(msg::Leave{reason});
}

std::string CoordinatorSearch::WhyNot(const msg::Welcome& welcome) const {
  if (welcome.run_id != followed_.run_id) return "another job is run there";
  const bool same = welcome.job_id == followed_.job_id;  // drawn at each start of a coordinator
  if (welcome.term < followed_.term || (welcome.term == followed_.term && !same)) {
    return fmt::format(
        "the coordinator there is of term {}, and this worker has followed one of "
        "term {}",
        welcome.term, followed_.term);
  }
  if (welcome.self.worker != followed_.self.worker) return "this worker's place has been taken";
  if (welcome.config_text != followed_.config_text) return "the job has other settings there";
  return {};
}

}  // namespace lockstep::worker
