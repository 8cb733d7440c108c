#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/bench/options.h"
#include "tools/bench/report.h"

namespace lockstep::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<BenchOptions> Parse(std::vector<std::string> arguments) {
  return ParseBenchOptions(arguments);
}

std::string ErrorOf(std::vector<std::string> arguments) {
  const auto options = Parse(std::move(arguments));
  return options ? std::string() : options.error().message;
}

TEST(BenchOptions, TheCoordinator) {
  const auto options = Parse({"coordinator", "--workers", "2,30", "--rounds=7", "--units", "4",
                              "--set", "policy.name=backup", "--json", "-"});
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_EQ(options->kind, BenchOptions::Kind::kCoordinator);
  EXPECT_THAT(options->coordinator.workers, ElementsAre(2, 30));
  EXPECT_EQ(options->coordinator.rounds, 7u);
  EXPECT_EQ(options->coordinator.units, 4u);
  ASSERT_EQ(options->coordinator.settings.size(), 1u);
  EXPECT_EQ(options->coordinator.settings[0].value, "backup");
  EXPECT_EQ(options->coordinator.json, "-");
}

TEST(BenchOptions, TheExchange) {
  for (const std::vector<std::string>& count : {std::vector<std::string>{"-n", "3"}, {"-n3"}}) {
    std::vector<std::string> arguments = {
        "exchange", "--bytes", "4096,104857600", "--transport", "tcp", "--mapping", "off"};
    arguments.insert(arguments.end(), count.begin(), count.end());
    const auto options = Parse(arguments);
    ASSERT_TRUE(options.ok()) << options.error().message;
    EXPECT_EQ(options->kind, BenchOptions::Kind::kExchange);
    EXPECT_EQ(options->exchange.workers, 3u);
    EXPECT_THAT(options->exchange.bytes, ElementsAre(4096, 104857600));
    EXPECT_EQ(options->exchange.transport, "tcp");
    EXPECT_EQ(options->exchange.mapping, "off");
  }
}

TEST(BenchOptions, MistakesAreNamed) {
  EXPECT_THAT(ErrorOf({}), HasSubstr("wants a command"));
  EXPECT_THAT(ErrorOf({"everything"}), HasSubstr("'everything' is no command"));
  EXPECT_THAT(ErrorOf({"coordinator", "--workers", "0"}), HasSubstr("--workers"));
  EXPECT_THAT(ErrorOf({"coordinator", "--workers", ""}), HasSubstr("--workers"));
  EXPECT_THAT(ErrorOf({"coordinator", "--worker", "3"}), HasSubstr("--worker"));
  EXPECT_THAT(ErrorOf({"coordinator", "--rounds", "many"}), HasSubstr("--rounds"));
  EXPECT_THAT(ErrorOf({"coordinator", "--set", "policy"}), HasSubstr("KEY=VALUE"));
  EXPECT_THAT(ErrorOf({"coordinator", "--workers", "4096", "--units", "17"}),
              HasSubstr("at most 65536 units"));
  EXPECT_THAT(ErrorOf({"exchange", "-n", "1"}), HasSubstr("--workers"));
  EXPECT_THAT(ErrorOf({"exchange", "--bytes", "1,4"}), HasSubstr("--bytes"));
  EXPECT_THAT(ErrorOf({"exchange", "--bytes", "4097"}), HasSubstr("four bytes each"));
  EXPECT_THAT(ErrorOf({"exchange", "--bytes", ""}), HasSubstr("--bytes"));
  EXPECT_THAT(ErrorOf({"exchange", "--transport", "mpi"}), HasSubstr("--transport"));
  EXPECT_THAT(ErrorOf({"exchange", "--mapping", "on"}), HasSubstr("--mapping"));
}

TEST(BenchOptions, HelpIsPrinted) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"coordinator", "--help"}, {"exchange", "--help"}}) {
    const auto options = Parse(arguments);
    ASSERT_TRUE(options.ok());
    EXPECT_EQ(options->kind, BenchOptions::Kind::kPrint);
    EXPECT_THAT(options->print,
                HasSubstr("lockstep-bench " + (arguments.size() == 2 ? arguments[0] : "COMMAND")));
  }
}

TEST(BenchReport, QuantilesAreValuesThatWereMeasured) {
  EXPECT_EQ(Quantile({}, 0.5), 0);
  EXPECT_EQ(Quantile({7}, 0.95), 7);
  EXPECT_EQ(Median({9, 1, 5}), 5);
  EXPECT_EQ(Median({4, 1, 3, 2}), 2);
  std::vector<double> hundred;
  for (int i = 100; i > 0; --i) hundred.push_back(i);
  EXPECT_EQ(Quantile(hundred, 0.95), 95);
  EXPECT_EQ(Quantile(hundred, 1), 100);
}

TEST(BenchReport, ColumnsAreAligned) {
  EXPECT_EQ(Table({{"n", "us"}, {"1000", "3"}}), "   n  us\n1000   3\n");
}

TEST(BenchReport, AFileThatCannotBeIsNamed) {
  const Status written = WriteReport("/nowhere/at/all.json", "{}");
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().code, ErrorCode::kInvalid);
  EXPECT_THAT(written.error().message, HasSubstr("/nowhere/at/all.json"));
}

}  // namespace
}  // namespace lockstep::bench
