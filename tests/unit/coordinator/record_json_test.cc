// Lines of rounds.jsonl are read back as they were written, and make a timeline.
#include "coordinator/record/write_json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/from_round.h"
#include "coordinator/record/timeline.h"

namespace lockstep::coordinator {
namespace {

RoundRecord Example() {
  RoundRecord record;
  record.round = RoundId(7);
  record.epoch = Epoch(1);
  record.update = 8;
  record.attempts = {{Attempt(0), "the first 2 of 3 workers"}, {Attempt(1), "a \"quoted\"\nword"}};
  record.algorithm = ExchangeAlgorithm::kTree;
  record.policy = "backup+none";
  record.reason = "the first 2 of 3 workers";
  record.contributors = {{WorkerId(0), PartIndex(0), 1, 8, {{0, 4}, {8, 12}}},
                         {WorkerId(2), PartIndex(1), 0.25f, 4, {{4, 8}}}};
  record.units = {{WorkerId(0), {0, 4}, 1.25, 1.5, 2, 3},
                  {WorkerId(2), {4, 8}, -0.000012, 12.000001}};
  record.excluded = {WorkerId(1)};
  record.moved = {{WorkerId(1), WorkerId(2), {4, 8}}};
  record.dropped = {{16, 20}};
  record.skipped = {{WorkerId(1), {{16, 20}}}};
  record.requeued = {{12, 16}};
  record.loss = 0.6931471805599453;
  record.metrics = {{"accuracy", Reduction::kMean, 9, 12},
                    {"norm", Reduction::kMin, 0.5, 0},
                    {"norm", Reduction::kMax, std::nan(""), 0}};
  record.samples = 12;
  record.divisor = 345;
  record.learning_rate = 0.1f;
  record.sent = {4096, 1024};
  record.input_wait = {{WorkerId(2), 0.125}};
  record.start = 1;
  record.sending = {{WorkerId(0), 1.375}};
  record.ready = {{WorkerId(0), 1.5}, {WorkerId(2), 12.25}};
  record.delivered = {{WorkerId(0), 1.75}};
  record.commit = 12.5;
  record.applied = 12.7;
  record.digest = DigestRecord{3, 0xabcdef0123456789, 2};
  return record;
}

TEST(RoundLine, IsReadBackAsItWasWritten) {
  const RoundRecord record = Example();
  const std::string line = RoundLine(record);
  const auto read = RoundFromLine(line);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(RoundLine(*read), line);
  EXPECT_EQ(read->loss, record.loss);
  EXPECT_EQ(ValueOf(read->metrics.at(0)), 0.75);
  EXPECT_EQ(read->learning_rate, record.learning_rate);
  EXPECT_EQ(read->attempts[1].reason, record.attempts[1].reason);
  EXPECT_EQ(read->contributors[1].weight, 0.25f);
  EXPECT_EQ(read->units[0].units, 2u);
  EXPECT_EQ(read->divisor, 345u);
  EXPECT_EQ(read->units[0].run, 3u);
  EXPECT_EQ(read->units[1].units, 1u);
  EXPECT_EQ(read->units[1].run, 1u);
  EXPECT_EQ(read->units[1].start, -0.000012);
  EXPECT_EQ(read->units[1].end, 12.000001);
  EXPECT_EQ(read->digest->value, record.digest->value);
  EXPECT_EQ(read->sent.early_bytes, 1024u);
  EXPECT_EQ(read->algorithm, ExchangeAlgorithm::kTree);
  EXPECT_EQ(read->sending, record.sending);
  EXPECT_EQ(read->input_wait, record.input_wait);
}

TEST(RoundLine, HasTheDocumentedKeys) {
  const auto line = nlohmann::json::parse(RoundLine(Example()));
  for (const char* key :
       {"round", "epoch", "attempts", "policy", "reason", "contributors", "units", "excluded",
        "moved", "dropped", "requeued", "loss", "samples", "learning_rate", "times", "digest"}) {
    EXPECT_TRUE(line.contains(key)) << key;
  }
  EXPECT_EQ(line["metrics"]["accuracy"], (nlohmann::json{{"mean", 0.75}}));
  EXPECT_EQ(line["metrics"]["norm"], (nlohmann::json{{"min", 0.5}, {"max", nullptr}}));
  EXPECT_EQ(line["times"]["ready"]["2"], 12.25);
  EXPECT_EQ(line["sent"], (nlohmann::json{{"bytes", 4096}, {"early_bytes", 1024}}));
  EXPECT_EQ(line["contributors"][0]["weight"], 1.0);
  EXPECT_EQ(line["dropped"], nlohmann::json::parse("[[16,20]]"));
  EXPECT_EQ(line["algorithm"], "tree");
  RoundRecord open = Example();
  open.applied.reset();
  open.digest.reset();
  open.metrics.clear();
  open.sent = {};
  open.algorithm = ExchangeAlgorithm::kDirect;
  open.sending.clear();
  const auto without = nlohmann::json::parse(RoundLine(open));
  EXPECT_TRUE(without["times"]["applied"].is_null());
  EXPECT_FALSE(without.contains("digest"));
  EXPECT_FALSE(without.contains("metrics"));
  EXPECT_FALSE(without.contains("sent"));
  EXPECT_FALSE(without.contains("algorithm"));
  EXPECT_FALSE(without["times"].contains("sending"));
}

TEST(RoundLine, WhatIsNoneIsAnError) {
  for (const char* text : {"", "{", "[]", "{\"round\":1}", "{\"round\":\"x\"}"}) {
    EXPECT_FALSE(RoundFromLine(text).ok()) << text;
  }
}

TEST(RoundLine, NumbersThatCannotBeAreErrorsOfOneLine) {
  const auto good = nlohmann::json::parse(RoundLine(Example()));
  const std::vector<std::pair<const char*, std::vector<nlohmann::json>>> wrong = {
      {"/round", {-1, 1.5, 1e30, "7", nullptr}},
      {"/epoch", {-1, 0.5, 4294967296u}},
      {"/divisor", {-5, 1e300, "all"}},
      {"/samples", {-5, 1e300, 1.0, nlohmann::json::array({1})}},
      {"/learning_rate", {1e300, -1e39, nullptr}},
      {"/units/0/worker", {-1, 16384, 4294967295u, 1e9}},
      {"/units/0/range", {{4, 0}, {0, 0}, {0, 1e30}, {-1, 4}, {0, 4, 8}, 4}},
      {"/units/0/range/1", {18446744073709551615u}},
      {"/units/0/end", {1e300, "soon"}},
      {"/units/0/units", {0, -1, 4, 1.5}},
      {"/units/0/run", {0, 1, 65537}},
      {"/contributors/0/part", {256, -1, 0.5}},
      {"/contributors/0/weight", {1e39, "1"}},
      {"/contributors/0/samples", {-1, 1e20}},
      {"/excluded/0", {16384, -1}},
      {"/times/start", {-1e300}},
      {"/times/ready", {{{"-1", 1.0}}, {{"4294967296", 1.0}}, {{"x", 1.0}}, {{"1", 1e300}}}},
      {"/attempts/0/attempt", {1e20, -1}},
      {"/digest/value", {"wrong", "", "0x1", 7}},
  };
  for (const auto& [where, values] : wrong) {
    for (const auto& value : values) {
      nlohmann::json line = good;
      line[nlohmann::json::json_pointer(where)] = value;
      const auto read = RoundFromLine(line.dump());
      ASSERT_FALSE(read.ok()) << where << " = " << value;
      EXPECT_EQ(read.error().code, ErrorCode::kInvalid);
      EXPECT_EQ(read.error().message.find('\n'), std::string::npos) << read.error().message;
    }
  }
}

TEST(Summary, PathsAreWrittenAsAllTheRest) {
  JobResult result;
  result.reason = "\n  \"paths\": []";
  EXPECT_EQ(nlohmann::json::parse(SummaryText(result))["paths"], nlohmann::json::array());
  result.paths = {{WorkerId(0), WorkerId(1), "mapped \"x\"\n", 13.5},
                  {WorkerId(1), WorkerId(0), "tcp", 0.1}};
  const std::string text = SummaryText(result);
  const auto summary = nlohmann::ordered_json::parse(text);
  EXPECT_EQ(text, summary.dump(2) + "\n");
  EXPECT_EQ(summary["reason"], result.reason);
  ASSERT_EQ(summary["paths"].size(), 2u);
  EXPECT_EQ(summary["paths"][0]["path"], result.paths[0].path);
  EXPECT_EQ(summary["paths"][1]["gb_per_s"], 0.1);
}

TEST(Summary, SaysHowMuchOfTheExchangeIsHiddenOrWhyNobodyKnows) {
  const auto overlap = [](const JobResult& result) {
    return nlohmann::json::parse(SummaryText(result))["overlap"];
  };
  JobResult result;
  result.workers = 1;
  EXPECT_EQ(overlap(result)["reason"], "no round was closed");
  result.totals.rounds = 1;
  EXPECT_EQ(overlap(result)["reason"], "there was no other worker to send to");
  result.workers = 2;
  EXPECT_EQ(overlap(result)["reason"], "contributions were read in mapped memory, none was sent");
  result.simulated = SimulatedRecord{"modelled", 1};
  EXPECT_EQ(overlap(result)["reason"], "the exchange is modelled, nothing is sent");
  EXPECT_TRUE(overlap(result)["share"].is_null());
  result.sent = {800, 0};
  EXPECT_EQ(overlap(result), (nlohmann::json{{"share", 0.0}, {"bytes", 800}, {"early_bytes", 0}}));
  result.sent = {800, 200};
  EXPECT_EQ(overlap(result)["share"], 0.25);
}

TEST(Timeline, ShowsWhatIsSentBehindTheUnits) {
  RoundRecord record = Example();
  record.sending[WorkerId(2)] = 1.25;  // is not delivered: no span
  std::ostringstream out;
  TimelineWriter(out).Add(record);
  std::vector<nlohmann::json> spans;
  std::set<nlohmann::json> names;
  const auto timeline = nlohmann::json::parse(out.str());
  for (const auto& event : timeline["traceEvents"]) {
    if (event["name"] == "contribution to round 7") spans.push_back(event);
    if (event["name"] == "thread_name") names.insert(event["args"]["name"]);
  }
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0]["ts"], 1375000);
  EXPECT_EQ(spans[0]["dur"], 375000);
  EXPECT_EQ(names, (std::set<nlohmann::json>{"rounds", "exchanges", "worker 0", "worker 2",
                                             "worker 0 sends"}));
}

// A round is applied while the next one is computed, and two estimates of a worker's clock may have
// one unit end after the next has begun.
TEST(Timeline, SpansOfATrackFollowEachOther) {
  RoundRecord first;
  first.round = RoundId(0);
  first.commit = 1;
  first.applied = 1.5;
  first.units = {{WorkerId(0), {0, 4}, 0.25, 0.75}, {WorkerId(0), {4, 8}, 0.75, 1}};
  RoundRecord second;
  second.round = RoundId(1);
  second.start = 1;
  second.commit = 2;
  second.applied = 2.25;
  second.units = {{WorkerId(0), {8, 12}, 0.875, 1.125}, {WorkerId(0), {12, 16}, 1.125, 1.5}};
  RoundRecord third;  // its units are over before those of the second
  third.round = RoundId(2);
  third.start = 2;
  third.commit = 3;
  third.units = {{WorkerId(0), {16, 20}, 1.25, 1.375}};
  std::ostringstream out;
  {
    TimelineWriter timeline(out);
    for (const RoundRecord* record : {&first, &second, &third}) timeline.Add(*record);
  }
  using Span = std::pair<std::int64_t, std::int64_t>;
  std::map<std::string, std::vector<Span>> spans;
  std::map<std::uint64_t, std::string> names;
  const auto timeline = nlohmann::json::parse(out.str());
  for (const auto& event : timeline["traceEvents"]) {
    if (event["name"] == "thread_name") names[event["tid"]] = event["args"]["name"];
    if (event["ph"] != "X") continue;
    const std::int64_t start = event["ts"];
    spans[names.at(event["tid"])].emplace_back(start, start + event["dur"].get<std::int64_t>());
  }
  EXPECT_EQ(spans["rounds"],
            (std::vector<Span>{{0, 1000000}, {1000000, 2000000}, {2000000, 3000000}}));
  EXPECT_EQ(spans["exchanges"], (std::vector<Span>{{1000000, 1500000}, {2000000, 2250000}}));
  EXPECT_EQ(spans["worker 0"], (std::vector<Span>{{250000, 750000},
                                                  {750000, 1000000},
                                                  {1000000, 1125000},
                                                  {1125000, 1500000},
                                                  {1500000, 1500000}}));
}

TEST(Timeline, IsOneJsonDocument) {
  std::stringstream lines(RoundLine(Example()) + "\nnot a line\n");
  std::stringstream out;
  TimelineFromRounds(lines, out);
  const auto timeline = nlohmann::json::parse(out.str());
  std::size_t units = 0;
  for (const auto& event : timeline["traceEvents"]) {
    const bool several = event["name"] == "units of round 7";
    if (event["name"] != "unit of round 7" && !several) continue;
    ++units;
    EXPECT_EQ(event["ph"], "X");
    EXPECT_EQ(several, event["tid"] == 1);
    if (event["tid"] == 1) {
      EXPECT_EQ(event["ts"], 1250000);
      EXPECT_EQ(event["dur"], 250000);
    }
  }
  EXPECT_EQ(units, 2u);
}

// In `moved` it stands with every hand that it went through.
TEST(SamplesMoved, CountOnceAndOnlyWhereAnotherWorkerHasThemInTheEnd) {
  const WorkerId a(0);
  const WorkerId b(1);
  const WorkerId c(2);
  EXPECT_EQ(SamplesMoved({}), 0u);
  EXPECT_EQ(SamplesMoved({{a, b, {0, 4}}, {c, a, {8, 10}}}), 6u);
  EXPECT_EQ(SamplesMoved({{a, b, {0, 4}}, {b, c, {0, 4}}, {c, b, {0, 4}}}), 4u);
  EXPECT_EQ(SamplesMoved({{a, b, {0, 4}}, {a, b, {4, 8}}, {b, a, {0, 4}}}), 4u);
}

}  // namespace
}  // namespace lockstep::coordinator
