#include "base/program_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/options/temp_file.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Args = std::vector<std::string>;

TEST(CoordinatorOptions, ReadsCommandLineAndConfig) {
  TempFolder folder;
  const auto options = ParseCoordinatorOptions(
      Args{"--listen", "[::1]:0", "--workers", "4", "--config",
           folder.Write("job.ini", "[job]\nrounds = 5\nseed = 3\n"), "--run-dir", "runs/a",
           "--http=127.0.0.1:8080", "--job.seed=8", "--secret-file", "s", "--log-level=debug"});
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_EQ(options->listen, (HostPort{"::1", 0}));
  EXPECT_EQ(options->workers, 4u);
  EXPECT_EQ(options->run_dir, "runs/a");
  EXPECT_EQ(options->http, (HostPort{"127.0.0.1", 8080}));
  EXPECT_EQ(options->job.job.rounds, 5u);
  EXPECT_EQ(options->job.job.seed, 8u);
  EXPECT_EQ(options->secret_file, "s");
  EXPECT_EQ(options->log_level, "debug");
  EXPECT_FALSE(options->resume);
  EXPECT_EQ(options->print, "");
}

TEST(CoordinatorOptions, SizesHaveNamesOfTheirOwn) {
  TempFolder folder;
  const std::string file = folder.Write("job.ini", "[job]\nmin_workers = 3\nunits = 8\n");
  Args args = {"--workers=4", "--run-dir=a", "--min-workers", "2", "--max-workers=8"};
  auto options = ParseCoordinatorOptions(args);
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_EQ(options->job.job.min_workers, 2u);
  EXPECT_EQ(options->slots(), 8u);
  args.push_back("--config=" + file);
  options = ParseCoordinatorOptions(args);
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_EQ(options->job.job.min_workers, 2u) << "the command line wins over the file";
  // Also over what would hold with settings of the workers' program.
  const std::string settings = "[job]\nmin_workers = 4\n";
  options = ParseCoordinatorOptions(
      Args{"--workers=4", "--run-dir=a", "--config-from-workers", "--min-workers=2"}, &settings);
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_EQ(options->job.job.min_workers, 2u);

  const auto error = [](const Args& wrong) {
    const auto refused = ParseCoordinatorOptions(wrong);
    return refused.ok() ? "" : refused.error().message;
  };
  EXPECT_EQ(error({"--workers=4", "--run-dir=a", "--min-workers=2", "--job.min_workers=2"}),
            "--min-workers: it is the same as --job.min_workers: give one of them");
  EXPECT_THAT(error({"--workers=4", "--run-dir=a", "--max-workers=0"}),
              StartsWith("--max-workers = \"0\": expected"));
  EXPECT_EQ(error({"--workers=4", "--run-dir=a", "--max-workers=3"}),
            "job.max_workers = 3 is less than --workers 4");
  EXPECT_EQ(error({"--standby", "--follow=a:1", "--run-dir=a", "--max-workers=9"}),
            "--max-workers: not with --standby, which does as the coordinator that it follows");
}

TEST(CoordinatorOptions, ResumeReadsTheRunDirectorysConfig) {
  TempFolder folder;
  folder.Write("config.ini", "[job]\nseed = 77\n");
  const Args args = {"--workers=2", "--run-dir=" + folder.path(), "--resume"};
  const auto options = ParseCoordinatorOptions(args);
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_TRUE(options->resume);
  EXPECT_EQ(options->job.job.seed, 77u);
}

TEST(CoordinatorOptions, ResumeOfWhatIsNoRunDirectoryIsSaidSo) {
  TempFolder folder;
  const auto error = [](const Args& args) {
    const auto options = ParseCoordinatorOptions(args);
    return options.ok() ? "" : options.error().message;
  };
  EXPECT_EQ(error({"--workers=2", "--resume"}), "--run-dir: required, as --run-dir runs/a");
  EXPECT_EQ(error({"--workers=2", "--resume", "--run-dir=" + folder.path()}),
            "--resume: " + folder.path() + " is no run directory");
  EXPECT_EQ(error({"--workers=2", "--resume", "--run-dir=" + folder.path() + "/typo"}),
            "--resume: " + folder.path() + "/typo is no run directory");
  std::filesystem::create_directory(folder.path() + "/checkpoints");
  EXPECT_THAT(error({"--workers=2", "--resume", "--run-dir=" + folder.path()}),
              HasSubstr("config.ini: No such file"));
}

TEST(CoordinatorOptions, WhatWorkersHaveSaidHoldsWhenTheJobIsResumed) {
  TempFolder folder;
  folder.Write("config.ini", "[job]\nseed = 77\nrounds = 7\n");
  const std::string config = folder.Write("job.ini", "[job]\nrounds = 5\n");
  const Args args = {"--workers=2", "--run-dir=" + folder.path(), "--resume",
                     "--config-from-workers", "--config=" + config};
  const auto options = ParseCoordinatorOptions(args);
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_EQ(options->job.job.seed, 77u);
  EXPECT_EQ(options->job.job.rounds, 5u);
}

TEST(CoordinatorOptions, WhatWorkersSayHoldsWhereNobodyElseSays) {
  TempFolder folder;
  const std::string config = folder.Write("job.ini", "[job]\nrounds = 5\n");
  const Args args = {"--workers=4", "--run-dir=x", "--config-from-workers",
                     "--config",    config,        "--job.seed=8"};
  // Not known yet: what they may change is not checked.
  const auto before = ParseCoordinatorOptions(args);
  ASSERT_TRUE(before.ok()) << before.error().message;
  EXPECT_TRUE(before->config_from_workers);
  EXPECT_EQ(before->settings_timeout_s, 600);
  Args soon = args;
  soon.push_back("--job.join_timeout=2s");
  EXPECT_EQ(ParseCoordinatorOptions(soon)->settings_timeout_s, 2);
  const std::string said = "[job]\nseed = 1\nrounds = 7\nglobal_batch = 64\n[optimizer]\nlr = 2\n";
  const auto options = ParseCoordinatorOptions(args, &said);
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_EQ(options->job.job.seed, 8u);
  EXPECT_EQ(options->job.job.rounds, 5u);
  EXPECT_EQ(options->job.job.global_batch, 64u);
  EXPECT_EQ(options->job.optimizer.lr, 2);
  // An exception in one script is not to stop the others.
  EXPECT_EQ(options->job.job.min_workers, 1u);
  const std::string quorum = said + "[job]\nmin_workers = 3\n";
  EXPECT_EQ(ParseCoordinatorOptions(args, &quorum)->job.job.min_workers, 3u);
  Args all = args;
  all.push_back("--job.min_workers=0");
  EXPECT_EQ(ParseCoordinatorOptions(all, &quorum)->job.job.min_workers, 0u);
  const auto error = [&](const std::string& settings) {
    const auto wrong = ParseCoordinatorOptions(args, &settings);
    return wrong.ok() ? "" : wrong.error().message;
  };
  EXPECT_THAT(error("[job]\nglobal_batch = 3\n"), HasSubstr("less than --workers 4"));
  EXPECT_THAT(error("[job]\nunit = 3\n"), StartsWith("the workers' program:2: unknown key"));
  EXPECT_THAT(error("[policy]\nname = plugin\nplugin = /tmp/rule.so\n"),
              StartsWith("policy.plugin: the coordinator loads only a plug-in"));
}

TEST(CoordinatorOptions, ChecksSlowDownsAndStartsNothing) {
  const auto good =
      ParseCoordinatorOptions(Args{"--check-slowdown=worker=2,factor=4", "--check-slowdown",
                                   "pattern=pause,every=2s,length=1s"});
  ASSERT_TRUE(good.ok()) << good.error().message;
  EXPECT_EQ(good->print, "worker=2,factor=4\npattern=pause,every=2s,length=1s\n");
  const auto wrong = ParseCoordinatorOptions(
      Args{"--check-slowdown=factor=4", "--check-slowdown=worker=2,factro=4"});
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(
      wrong.error().message,
      StartsWith("--check-slowdown = \"worker=2,factro=4\": slowdown \"factro\": unknown key "
                 "(did you mean \"factor\"?)"));
}

TEST(CoordinatorOptions, MistakesAreOneLine) {
  const auto error = [](const Args& args) {
    const auto options = ParseCoordinatorOptions(args);
    EXPECT_FALSE(options.ok());
    return options.ok() ? "" : options.error().message;
  };
  EXPECT_EQ(error({"--run-dir=x"}), "--workers: required, as --workers 4");
  EXPECT_EQ(error({"--workers=2"}), "--run-dir: required, as --run-dir runs/a");
  EXPECT_EQ(error({"--listn=1"}), "--listn: unknown option (did you mean \"--listen\"?)");
  EXPECT_EQ(error({"--listen=7070"}),
            "--listen = \"7070\": expected HOST:PORT, as 127.0.0.1:7070, [::1]:7070 or node3:7070");
  const Args good = {"--workers=4", "--run-dir=x"};
  const auto with = [&](std::string more) {
    Args args = good;
    args.push_back(std::move(more));
    return error(args);
  };
  EXPECT_THAT(with("--job.min_workers=5"), HasSubstr("more than --workers 4"));
  EXPECT_THAT(with("--job.units=3"), HasSubstr("less than --workers 4"));
  EXPECT_THAT(with("--job.global_batch=3"), HasSubstr("less than --workers 4"));
  EXPECT_THAT(with("--config=/nowhere/job.ini"), StartsWith("/nowhere/job.ini: No such file"));
}

TEST(ProgramOptions, HelpAndVersionComeBeforeMistakes) {
  const auto help = ParseCoordinatorOptions(Args{"--workers=x", "--help"});
  ASSERT_TRUE(help.ok());
  EXPECT_THAT(help->print, HasSubstr("--policy.name NAME (=full)"));
  EXPECT_THAT(help->print, HasSubstr("--run-dir DIR"));
  const auto version = ParseWorkerOptions(Args{"--version"});
  ASSERT_TRUE(version.ok());
  EXPECT_EQ(version->print, "lockstep-worker " + Version() + "\n");
}

TEST(WorkerOptions, ReadsTheCommandLine) {
  const auto options = ParseWorkerOptions(Args{
      "--coordinator", "node3:7070", "--device=cuda:1", "--data.path", "/data", "--slowdown",
      "worker=2,factor=4", "--slowdown=factor=2", "--data-host=10.0.0.2", "--connect-timeout=5s"});
  ASSERT_TRUE(options.ok()) << options.error().message;
  EXPECT_EQ(options->coordinator, (HostPort{"node3", 7070}));
  EXPECT_EQ(options->device, "cuda:1");
  EXPECT_FALSE(options->require_gpudirect);
  ASSERT_EQ(options->overrides.size(), 1u);
  EXPECT_EQ(options->overrides[0].key, "data.path");
  EXPECT_EQ(options->overrides[0].value, "/data");
  ASSERT_EQ(options->slowdowns.size(), 2u);
  EXPECT_EQ(options->slowdowns[0].worker, WorkerId(2));
  EXPECT_EQ(options->data_host, "10.0.0.2");
  EXPECT_EQ(options->connect_timeout_s, 5);

  const auto config = ParseJobConfig("[data]\npath = /other\n", "job", options->overrides);
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->data.path, "/data");
}

TEST(WorkerOptions, MistakesAreOneLine) {
  const auto error = [](const Args& args) {
    const auto options = ParseWorkerOptions(args);
    EXPECT_FALSE(options.ok());
    return options.ok() ? "" : options.error().message;
  };
  EXPECT_EQ(error({}), "--coordinator: required, as --coordinator 127.0.0.1:7070");
  EXPECT_THAT(error({"--coordinator=node3:0"}), HasSubstr("port 0"));
  EXPECT_EQ(error({"--policy.name=full"}),
            "--policy.name: unknown option; the sections are data, exchange");
  EXPECT_THAT(error({"--device=gpu"}), HasSubstr("expected cpu, cuda or cuda:N"));
  EXPECT_THAT(error({"--slowdown=pattern=pause"}), HasSubstr("pattern"));
  EXPECT_THAT(error({"--coordinator=node3:7070", "--require-gpudirect"}),
              HasSubstr("--require-gpudirect: makes no sense with --device cpu"));
  EXPECT_TRUE(
      ParseWorkerOptions(Args{"--coordinator=node3:7070", "--require-gpudirect", "--device=cuda:0"})
          .ok());
}

TEST(HostPort, ParsesAndPrints) {
  for (const auto* text : {"127.0.0.1:7070", "[::1]:0", "node-3.example:65535"}) {
    const auto parsed = ParseHostPort(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(ToString(*parsed), text);
  }
  for (const auto* bad : {"", "host", "host:", ":7070", "::1:7070", "host:65536", "host:-1",
                          "host:7x", "ho st:1", "[]:1", "[::1]", "http://x:1"}) {
    EXPECT_FALSE(ParseHostPort(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace lockstep
