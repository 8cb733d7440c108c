#include "base/job_options.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/property_check.h"
#include "tests/unit/options/temp_file.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string ErrorOf(std::string_view text, std::vector<Setting> settings = {}) {
  const auto config = ParseJobConfig(text, "job.ini", settings);
  if (config.ok()) return "";
  EXPECT_EQ(config.error().code, ErrorCode::kInvalid);
  return config.error().message;
}

TEST(JobOptions, EmptyTextGivesTheDefaults) {
  const auto config = ParseJobConfig("", "job.ini");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(ToIni(*config), ToIni(JobConfig()));
  EXPECT_EQ(config->job.global_batch, 256u);
}

TEST(JobOptions, SettingsOverruleTheFile) {
  const auto config = ParseJobConfig(
      "[job]\nrounds = 7\nglobal_batch = 64\n[policy]\nname = full\n[backup]\nworkers = 2\n"
      "[emulate]\nunit_time = 20ms\n[exchange]\nbucket_bytes = 8MiB\n",
      "job.ini", std::vector<Setting>{{"policy.name", "backup+none"}, {"data.path", "/d"}});
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->job.rounds, 7u);
  EXPECT_EQ(config->policy.name, "backup+none");
  EXPECT_EQ(config->policy.backup_workers, 2u);
  EXPECT_EQ(config->emulate.unit_time_s, 0.02);
  EXPECT_EQ(config->exchange.bucket_bytes, 8u << 20);
  EXPECT_EQ(config->data.path, "/d");
}

TEST(JobOptions, EveryOptionRoundTripsExactly) {
  ExpectHolds("ParseJobConfig(ToIni(config)) is config", [] {
    JobConfig config;
    config.job.seed = *rc::gen::arbitrary<std::uint64_t>();
    config.job.rounds = *rc::gen::arbitrary<std::uint64_t>();
    config.model.widths = *rc::gen::resize(
        20, rc::gen::container<std::vector<std::uint32_t>>(rc::gen::inRange(1u, 65537u)));
    config.model.dropout = *rc::gen::inRange(0, 1000) / 1000.1;
    config.data.path =
        *rc::gen::container<std::string>(rc::gen::elementOf(std::string("/a #;\"\\")));
    config.optimizer.lr = *rc::gen::inRange(0, 1000000) / 7.0;
    config.optimizer.nesterov = *rc::gen::arbitrary<bool>();
    config.emulate.unit_time_s = *rc::gen::inRange(0, 100000) / 333.0;
    config.exchange.piece_bytes = *rc::gen::inRange(4096u, 1u << 22);
    const std::string text = ToIni(config);
    const auto back = ParseJobConfig(text, "job.ini");
    RC_ASSERT(back.ok());
    RC_ASSERT(ToIni(*back) == text);
    RC_ASSERT(back->job.seed == config.job.seed);
    RC_ASSERT(back->job.rounds == config.job.rounds);
    RC_ASSERT(back->model.widths == config.model.widths);
    RC_ASSERT(back->model.dropout == config.model.dropout);
    RC_ASSERT(back->data.path == config.data.path);
    RC_ASSERT(back->optimizer.lr == config.optimizer.lr);
    RC_ASSERT(back->optimizer.nesterov == config.optimizer.nesterov);
    RC_ASSERT(back->emulate.unit_time_s == config.emulate.unit_time_s);
    RC_ASSERT(back->exchange.piece_bytes == config.exchange.piece_bytes);
  });
}

TEST(JobOptions, UnitsAreANumberOrAuto) {
  EXPECT_THAT(ToIni(JobConfig{}), HasSubstr("units = auto"));
  auto read = ParseJobConfig("[job]\nglobal_batch = 64\nunits = auto\n", "job.ini");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->job.units, 0u);
  EXPECT_THAT(ErrorOf("[job]\nunits = many\n"), HasSubstr("auto"));
}

TEST(JobOptions, TheTypeOfWhatIsExchanged) {
  const auto parsed = [](const std::string& dtype) {
    return ParseJobConfig("[exchange]\ndtype = " + dtype + "\n", "job.ini");
  };
  for (const char* dtype : {"fp32", "bf16", "fp16"}) {
    ASSERT_TRUE(parsed(dtype).ok());
    EXPECT_EQ(parsed(dtype)->exchange.dtype, dtype);
    EXPECT_EQ(parsed(dtype)->exchange.number_bytes(), std::string_view(dtype) == "fp32" ? 4u : 2u);
  }
  ASSERT_TRUE(parsed("f32").ok());  // as it was called once
  EXPECT_EQ(parsed("f32")->exchange.dtype, "fp32");
  EXPECT_EQ(JobConfig().exchange.number_bytes(), 4u);
  EXPECT_FALSE(parsed("f16").ok());
}

TEST(JobOptions, WhatIsNotRoundedIsNotRoundedAtRandom) {
  for (const char* dtype : {"bf16", "fp16"}) {
    const auto parsed = ParseJobConfig(
        fmt::format("[exchange]\ndtype = {}\nrounding = stochastic\n", dtype), "job.ini");
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(parsed->exchange.rounding, "stochastic");
  }
  EXPECT_EQ(JobConfig().exchange.rounding, "nearest");
  EXPECT_THAT(ErrorOf("[exchange]\nrounding = stochastic\n"),
              HasSubstr("exchange.rounding = stochastic and exchange.dtype = fp32"));
  EXPECT_THAT(ErrorOf("[exchange]\nrounding = stochastic\ndtype = bf16\ncompression = topk\n"),
              HasSubstr("exchange.rounding = stochastic and exchange.compression = topk"));
  EXPECT_THAT(ErrorOf("[exchange]\nrounding = up\n"), HasSubstr("nearest, stochastic"));
  EXPECT_EQ(ErrorOf("[exchange]\nrounding = nearest\ncompression = topk\n"), "");
}

TEST(JobOptions, OfEachBlockAShareIsKeptAndAtLeastOneNumber) {
  const auto kept = [](const std::string& fraction) {
    const auto parsed =
        ParseJobConfig("[exchange]\ncompression = topk\ntopk_fraction = " + fraction + "\n", "x");
    EXPECT_TRUE(parsed.ok());
    return parsed.ok() ? parsed->exchange.kept() : 0;
  };
  EXPECT_EQ(kept("0.0001"), 1u);
  EXPECT_EQ(kept("0.01"), 11u);
  EXPECT_EQ(kept("0.125"), 128u);
  EXPECT_EQ(kept("0.5"), 512u);
  EXPECT_EQ(JobConfig().exchange.kept(), 0u);
  EXPECT_FALSE(ParseJobConfig("[exchange]\ntopk_fraction = 0\n", "x").ok());
}

TEST(JobOptions, FactorsHaveTheirRankAndNothingElseHas) {
  EXPECT_EQ(JobConfig().exchange.rank(), 0u);
  const auto parsed = ParseJobConfig("[exchange]\ncompression = powersgd\n", "x");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->exchange.rank(), 8u);
  EXPECT_EQ(parsed->exchange.kept(), 0u);
  EXPECT_TRUE(parsed->exchange.compressed());
  EXPECT_THAT(ErrorOf("[exchange]\npowersgd_rank = 0\n"), HasSubstr("exchange.powersgd_rank"));
  EXPECT_THAT(ErrorOf("[exchange]\npowersgd_rank = 65\n"), HasSubstr("exchange.powersgd_rank"));
  EXPECT_THAT(ErrorOf("[exchange]\ncompression = powersgd\nalgorithm = tree\n"),
              HasSubstr("exchange.algorithm = tree and exchange.compression = powersgd"));
  EXPECT_THAT(ErrorOf("[exchange]\ncompression = powersgd\n[policy]\nname = async\n"),
              HasSubstr("exchange.compression = powersgd and policy.name = async"));
}

TEST(JobOptions, WhatMakesNoJobIsRefused) {
  EXPECT_THAT(ErrorOf("[job]\nepochs = 1\nrounds = 2\n"), HasSubstr("only one of them"));
  EXPECT_THAT(ErrorOf("[job]\nglobal_batch = 4\nunits = 8\n"), HasSubstr("job.units = 8"));
  EXPECT_THAT(ErrorOf("[exchange]\npiece_bytes = 8MiB\n"), HasSubstr("piece_bytes"));
  EXPECT_THAT(ErrorOf("[exchange]\ntransport = ucx\nconnections = 2\n"),
              HasSubstr("UCX chooses its connections itself"));
  EXPECT_THAT(ErrorOf("[exchange]\nwindow = 4\nconnections = 5\n"),
              HasSubstr("exchange.connections = 5 is more than exchange.window = 4"));
  EXPECT_EQ(ErrorOf("[exchange]\nwindow = 4\nconnections = 4\n"), "");
  EXPECT_THAT(ErrorOf("[exchange]\ntransport = ucx\nencryption = on\n"),
              HasSubstr("UCX does not encrypt"));
  EXPECT_THAT(ErrorOf("[schedule]\nname = step\n"), HasSubstr("schedule.step_every"));
  EXPECT_THAT(ErrorOf("[optimizer]\nnesterov = true\nmomentum = 0\n"), HasSubstr("momentum"));
  EXPECT_EQ(ErrorOf("[schedule]\nname = cosine\n"), "");
}

TEST(JobOptions, PolicyNamesAreCheckedForFormOnly) {
  for (const auto* good : {"full", "backup+none", "some-plugin", "full+flexrr"}) {
    EXPECT_EQ(ErrorOf("", {{"policy.name", good}}), "") << good;
  }
  for (const auto* bad : {"", "+", "full+", "+none", "a+b+c", "Full", "a b", "1a"}) {
    EXPECT_THAT(ErrorOf(std::string("[policy]\nname = ") + bad + "\n"), StartsWith("job.ini:2:"))
        << bad;
  }
}

TEST(JobOptions, MistakesInSettingsReadLikeTheCommandLine) {
  EXPECT_EQ(ErrorOf("", {{"polcy.name", "full"}}),
            "--polcy.name: unknown option (did you mean \"--policy.name\"?)");
  EXPECT_EQ(ErrorOf("", {{"job.seed", "x"}}),
            "--job.seed = \"x\": expected a whole number, 0 to 18446744073709551615");
}

TEST(JobOptions, LoadsAFileOrNone) {
  TempFolder folder;
  EXPECT_TRUE(LoadJobConfig("").ok());
  const auto config = LoadJobConfig(folder.Write("job.ini", "[job]\nseed = 9\n"));
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->job.seed, 9u);
  EXPECT_FALSE(LoadJobConfig(folder.path() + "/none").ok());
}

TEST(JobOptions, HelpAndReferenceNameEveryOption) {
  const std::string help = JobOptionsDescription();
  const std::string reference = ConfigurationReference();
  const std::string ini = ToIni(JobConfig());
  std::string section;
  std::size_t options = 0;
  std::istringstream lines(ini);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('[')) section = line.substr(1, line.size() - 2);
    const auto equals = line.find(" =");
    if (equals == std::string::npos) continue;
    const std::string key = section + "." + line.substr(0, equals);
    EXPECT_THAT(help, HasSubstr("--" + key + " "));
    EXPECT_THAT(reference, HasSubstr("| `" + key + "` | "));
    ++options;
  }
  EXPECT_GT(options, 40u);
}

TEST(JobOptions, WorkerKeysAreOptions) {
  EXPECT_THAT(WorkerKeys(), ElementsAre("data.path", "exchange.threads"));
  for (const auto key : WorkerKeys()) EXPECT_EQ(ErrorOf("", {{std::string(key), "7"}}), "");
}

}  // namespace
}  // namespace lockstep
