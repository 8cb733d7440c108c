#include "coordinator/record/metrics.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "coordinator/record/recent_rounds.h"

namespace lockstep::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RoundRecord Round(double start, double commit, std::optional<double> applied) {
  RoundRecord record;
  record.start = start;
  record.commit = commit;
  record.applied = applied;
  record.attempts = {{Attempt(0), "all 2 workers"}};
  return record;
}

JobStatus Training() {
  JobStatus status;
  status.phase = Phase::kTraining;
  status.round = RoundId(12);
  status.policy = "flexrr";
  status.transport = "tcp";
  MemberStatus member;
  member.member = {WorkerId(0), Incarnation(3)};
  member.state = MemberState::kLive;
  member.host = "node\"1\\\n";
  member.unit_seconds = 0.25;
  status.members.push_back(member);
  member.member = {WorkerId(1), Incarnation(1)};
  member.state = MemberState::kLost;
  status.members.push_back(member);
  return status;
}

// Each line of the text format: a comment, or a name with labels and one number. Help and type come
// before a name's samples, once.
void Check(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  std::string family;
  std::set<std::string> families;
  std::set<std::string> samples;
  while (std::getline(lines, line)) {
    if (line.starts_with("# HELP ")) {
      family = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(families.insert(family).second) << family << " comes twice";
      continue;
    }
    if (line.starts_with("# TYPE ")) {
      EXPECT_TRUE(line.starts_with("# TYPE " + family + " ")) << line;
      continue;
    }
    EXPECT_TRUE(line.starts_with(family)) << line << " is not of " << family;
    const std::size_t value = line.rfind(' ');
    EXPECT_TRUE(samples.insert(line.substr(0, value)).second) << line << " comes twice";
    std::size_t used = 0;
    EXPECT_NO_THROW((void)std::stod(line.substr(value + 1), &used)) << line;
    EXPECT_EQ(used, line.size() - value - 1) << line;
  }
  EXPECT_TRUE(text.ends_with('\n'));
}

TEST(JobMetrics, IsTextBeforeAnybodyHasJoined) {
  const std::string text = JobMetrics().Text(JobStatus());
  Check(text);
  EXPECT_THAT(text, HasSubstr("lockstep_job_phase{phase=\"gathering\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_round_seconds_count 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("lockstep_train_loss")));
}

TEST(JobMetrics, TellsOfWorkersWhateverTheyCallThemselves) {
  const std::string text = JobMetrics().Text(Training());
  Check(text);
  EXPECT_THAT(text, HasSubstr("worker=\"0\",host=\"node\\\"1\\\\\\n\",device=\"\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_worker_live{worker=\"0\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_worker_live{worker=\"1\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_worker_incarnation{worker=\"0\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_worker_unit_seconds{worker=\"0\"} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_workers{state=\"live\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_workers{state=\"lost\"} 1\n"));
}

// Who reads a counter takes a lower value for one that began at zero again.
TEST(JobMetrics, CountsAnewWhereAJobIsResumed) {
  JobStatus status = Training();
  status.resumed = {{.rounds = 500, .samples_counted = 32'000, .samples_moved = 10}, 500};
  status.totals = status.resumed.totals;
  status.updates = 500;
  std::string text = JobMetrics().Text(status);
  EXPECT_THAT(text, HasSubstr("lockstep_rounds_total 0\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_updates_total 0\n"));
  status.totals.rounds += 3;
  status.totals.samples_counted += 192;
  status.updates += 3;
  text = JobMetrics().Text(status);
  Check(text);
  EXPECT_THAT(text, HasSubstr("lockstep_rounds_total 3\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_updates_total 3\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_samples_counted_total 192\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_samples_moved_total 0\n"));
}

TEST(JobMetrics, TellsOfLinksAndMemoryWhatIsKnown) {
  EXPECT_THAT(JobMetrics().Text(Training()), Not(HasSubstr("lockstep_link")));
  EXPECT_THAT(JobMetrics().Text(Training()), Not(HasSubstr("resident_memory")));
  JobStatus status = Training();
  status.members[1].resident_bytes = std::uint64_t{5} << 30;
  const std::vector<PathRecord> links = {{WorkerId(0), WorkerId(1), "ucx \"rc\"\n", 12.5},
                                         {WorkerId(1), WorkerId(0), "mapped", 0.0625}};
  const std::string text = JobMetrics().Text(status, links);
  Check(text);
  EXPECT_THAT(text, HasSubstr("lockstep_link_bytes_per_second{worker=\"0\",peer=\"1\",path=\"ucx "
                              "\\\"rc\\\"\\n\"} 12500000000\n"));
  EXPECT_THAT(text, HasSubstr("{worker=\"1\",peer=\"0\",path=\"mapped\"} 62500000\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE lockstep_link_bytes_per_second gauge\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_worker_resident_memory_bytes{worker=\"1\"} 5368709120\n"));
  EXPECT_THAT(text, Not(HasSubstr("resident_memory_bytes{worker=\"0\"}")));
}

TEST(JobMetrics, TellsOfNumbersThatCannotBeRight) {
  EXPECT_THAT(JobMetrics().Text(Training()), HasSubstr("lockstep_warnings 0\n"));
  EXPECT_THAT(JobMetrics().Text(Training()), Not(HasSubstr("gradient_times")));
  JobStatus status = Training();
  status.warnings = {"the gradients of worker 1 are 3 times as large"};
  status.members[1].gradient_times = 3;
  const std::string text = JobMetrics().Text(status);
  Check(text);
  EXPECT_THAT(text, HasSubstr("lockstep_warnings 1\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_worker_gradient_times{worker=\"1\"} 3\n"));
  EXPECT_THAT(text, Not(HasSubstr("gradient_times{worker=\"0\"}")));
}

TEST(JobMetrics, TellsHowReadingKeepsUpWhereItIsSaid) {
  JobStatus status = Training();
  EXPECT_THAT(JobMetrics().Text(status), Not(HasSubstr("input_wait")));
  EXPECT_THAT(JobMetrics().Text(status), Not(HasSubstr("samples_ahead")));
  status.members[1].run_seconds = 4;
  status.members[1].input_wait_seconds = 1.5;
  status.members[0].samples_ahead = 0;
  const std::string text = JobMetrics().Text(status);
  Check(text);
  EXPECT_THAT(text, HasSubstr("lockstep_worker_run_seconds_total{worker=\"1\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_worker_input_wait_seconds_total{worker=\"1\"} 1.5\n"));
  EXPECT_THAT(text, Not(HasSubstr("input_wait_seconds_total{worker=\"0\"}")));
  EXPECT_THAT(text, HasSubstr("lockstep_worker_samples_ahead{worker=\"0\"} 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("samples_ahead{worker=\"1\"}")));
}

TEST(JobMetrics, CountsRoundsByTheirTime) {
  JobMetrics metrics;
  metrics.Note(Round(0, 0.01, 0.5));  // a bound itself belongs to its bucket
  metrics.Note(Round(1, 1.02, std::nullopt));
  metrics.Note(Round(2, 500, 501));  // beyond the last one
  RoundRecord again = Round(600, 600.3, 600.4);
  again.attempts.push_back({Attempt(1), "worker 1, an owner, is out"});
  again.moved = {{WorkerId(0), WorkerId(1), {0, 4}}, {WorkerId(0), WorkerId(1), {8, 12}}};
  metrics.Note(again);
  const std::string text = metrics.Text(Training());
  Check(text);
  EXPECT_THAT(text, HasSubstr("lockstep_round_seconds_bucket{le=\"0.005\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_round_seconds_bucket{le=\"0.01\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_round_seconds_bucket{le=\"0.025\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_round_seconds_bucket{le=\"0.5\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_round_seconds_bucket{le=\"100\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_round_seconds_bucket{le=\"+Inf\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_round_seconds_count 4\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_exchange_seconds_count 3\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_attempts_total 1\n"));
  EXPECT_THAT(text, HasSubstr("lockstep_moves_total 2\n"));
}

TEST(RecentRounds, KeepsSoManyAndSoMuch) {
  RecentRounds rounds;
  EXPECT_EQ(rounds.Text(-1), "[]\n");
  for (std::uint64_t r = 0; r < 200; ++r)
    rounds.Note(RoundId(r), fmt::format("{{\"round\":{}}}", r));
  EXPECT_EQ(rounds.Text(197), "[{\"round\":198},\n{\"round\":199}]\n");
  EXPECT_TRUE(rounds.Text(-1).starts_with("[{\"round\":72},"));
  EXPECT_EQ(rounds.Text(199), "[]\n");
  for (std::uint64_t r = 200; r < 203; ++r) {
    rounds.Note(RoundId(r), std::string(RecentRounds::kMostBytes / 2, 'x'));
  }
  EXPECT_LE(rounds.Text(-1).size(), RecentRounds::kMostBytes + 8);
  rounds.Note(RoundId(203), std::string(2 * RecentRounds::kMostBytes, 'y'));
  EXPECT_EQ(rounds.Text(-1).size(), 2 * RecentRounds::kMostBytes + 3);
}

}  // namespace
}  // namespace lockstep::coordinator
