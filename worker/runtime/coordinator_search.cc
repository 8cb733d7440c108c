#include "worker/runtime/coordinator_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/options.h"
#include "base/suggest.h"

namespace lockstep::worker {
namespace {

// How long one look waits for a coordinator before the program has a turn.
constexpr Duration kLook = std::chrono::seconds(2);
constexpr Duration kShortLook = std::chrono::milliseconds(100);
constexpr Duration kFirstPause = std::chrono::milliseconds(50);
constexpr Duration kLongestPause = std::chrono::milliseconds(500);

}  // namespace

Duration CoordinatorPatience(const JobConfig& config) {
  const double seconds = config.job.coordinator_timeout_s;
  return FromSeconds(seconds >= 0 ? seconds : 3 * config.liveness.timeout_s);
}

CoordinatorSearch::CoordinatorSearch(SessionOptions options, std::vector<std::string> addresses,
                                     const msg::Welcome& followed, Duration patience,
                                     std::string lost, ComputeQueue& compute,
                                     std::function<msg::RunInHand()> run_in_hand)
    : options_(std::move(options)),
      addresses_(std::move(addresses)),
      pause_(kFirstPause),
      followed_(followed),
      patience_(patience),
      lost_(std::move(lost)),
      compute_(compute),
      run_in_hand_(std::move(run_in_hand)) {
  options_.wanted = followed.self.worker;
  spdlog::warn(
      "{}; this worker keeps its parameters and looks for the next coordinator at {}, for at "
      "most {} (job.coordinator_timeout)",
      lost_, Listed(addresses_), FormatDurationSeconds(Seconds(patience_)));
}

JoinPatience CoordinatorSearch::Next(Duration left) {
  const Duration look = std::clamp<Duration>(left, kShortLook, kLook);
  options_.coordinator = addresses_[next_];
  next_ = (next_ + 1) % addresses_.size();
  if (addresses_.size() == 1) return {.reach = look, .welcome = look};
  if (next_ != 0) return {.reach = look, .welcome = look, .once = true};
  const Duration pause = std::exchange(pause_, std::min(2 * pause_, kLongestPause));
  return {.reach = std::min(pause, look), .welcome = look};
}

Result<bool> CoordinatorSearch::Look() {
  const Duration left = began_ + patience_ - MonotonicNow();
  const JoinPatience patience = Next(left);
  found_.channel = std::make_unique<CoordinatorChannel>(compute_);
  found_.address = options_.coordinator;
  auto joined = Join(options_, *found_.channel, run_in_hand_, patience);
  const std::string why = joined ? WhyNot(joined->welcome) : joined.error().message;
  if (joined && why.empty()) {
    found_.welcome = std::move(joined->welcome);
    return true;
  }
  // A coordinator of an earlier term, which was stopped and goes on, is not followed by anybody.
  Leave(why);
  found_.channel.reset();
  if (joined || joined.error().code == ErrorCode::kInvalid) SayWhyNot(why);
  // Of several, another one may take this worker.
  const bool refused =
      !joined && joined.error().code == ErrorCode::kRefused && addresses_.size() == 1;
  if (left > Duration{} && !refused) return false;
  return Error{ErrorCode::kUnavailable,
               fmt::format("{}; no coordinator took over within {} "
                           "(job.coordinator_timeout): {}",
                           lost_, FormatDurationSeconds(Seconds(patience_)), why)};
}

// It is there, and would be asked again at once.
void CoordinatorSearch::SayWhyNot(const std::string& why) {
  if (std::exchange(said_, why) != why) {
    spdlog::warn("the coordinator at {} is not followed: {}", found_.address, why);
  }
  std::this_thread::sleep_for(std::exchange(pause_, std::min(2 * pause_, kLongestPause)));
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
