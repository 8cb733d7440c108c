// Lines of rounds.jsonl: each by itself, then all of them as a run that is replayed.
#include <algorithm>
#include <sstream>

#include "base/check.h"
#include "coordinator/record/timeline.h"
#include "coordinator/record/write_json.h"
#include "tests/fuzz/target.h"
#include "tools/simulate/replay.h"

namespace lockstep::fuzz {
namespace {

void CheckLine(const std::string& line) {
  const auto record = coordinator::RoundFromLine(line);
  if (!record) {
    LOCKSTEP_CHECK(OneLine(record.error().message), "{}", record.error().message);
    return;
  }
  // What was read is written in a form of our own, which stays as it is.
  const std::string once = coordinator::RoundLine(*record);
  const auto again = coordinator::RoundFromLine(once);
  LOCKSTEP_CHECK(again.ok(), "{}", again.ok() ? "" : again.error().message);
  LOCKSTEP_CHECK(coordinator::RoundLine(*again) == once, "a line changes on the way");
}

}  // namespace

bool Run(Bytes bytes) {
  const std::string text(Text(bytes));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) CheckLine(line);
  std::istringstream for_timeline(text);
  std::ostringstream timeline;
  coordinator::TimelineFromRounds(for_timeline, timeline);

  std::istringstream for_replay(text);
  const auto records = simulate::ReadRounds(for_replay, "rounds.jsonl");
  if (!records) {
    LOCKSTEP_CHECK(OneLine(records.error().message), "{}", records.error().message);
    return false;
  }
  const auto run = simulate::MeasureRun(*records);
  if (!run) return false;
  simulate::SimulateOptions options;
  options.job.job.global_batch = 64;
  options.job.liveness.timeout_s = 10;
  // More of them take longer and show nothing new.
  if (run->workers.size() > 4 || run->rounds > 6) return true;
  if (!simulate::CheckReplay(options.job, *run)) return true;
  const auto prediction = simulate::Predict(options, *run, "full");
  LOCKSTEP_CHECK(prediction.ok() || OneLine(prediction.error().message));
  return true;
}

std::vector<std::string> Seeds() {
  coordinator::RoundRecord record;
  record.attempts = {{Attempt(0), "all 2 workers"}};
  record.policy = "full+none";
  record.reason = "all 2 workers";
  record.contributors = {{WorkerId(0), PartIndex(0), 1, 4, {{0, 4}}},
                         {WorkerId(1), PartIndex(0), 0.5f, 4, {{4, 8}}}};
  record.units = {{WorkerId(0), {0, 4}, 0.1, 0.3}, {WorkerId(1), {4, 8}, 0.1, 0.4}};
  record.samples = 8;
  record.ready = {{WorkerId(0), 0.3}, {WorkerId(1), 0.4}};
  record.delivered = {{WorkerId(0), 0.35}, {WorkerId(1), 0.45}};
  record.commit = 0.5;
  record.applied = 0.6;
  record.digest = coordinator::DigestRecord{0, 0xabc, 2};
  coordinator::RoundRecord next = record;
  next.round = RoundId(1);
  next.start = 0.5;
  next.commit = 1;
  next.contributors[0].staleness = 2;
  next.carried = {WorkerId(2)};
  next.excluded = {WorkerId(2)};
  next.moved = {{WorkerId(2), WorkerId(1), {4, 8}}};
  next.requeued = {{8, 12}};
  next.dropped = {{12, 16}};
  return {coordinator::RoundLine(record) + "\n",
          coordinator::RoundLine(record) + "\n" + coordinator::RoundLine(next) + "\n"};
}

}  // namespace lockstep::fuzz
