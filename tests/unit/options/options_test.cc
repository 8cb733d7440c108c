#include "base/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>

#include "tests/property_check.h"
#include "tests/unit/options/temp_file.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Args = std::vector<std::string>;

// A small program.
struct Fixture {
  std::uint32_t workers = 2;
  std::string name = "full";
  double timeout_s = 10;
  std::uint64_t bytes = 4096;
  std::vector<std::uint32_t> widths = {3, 4};
  std::vector<std::string> sets;
  bool resume = false;
  bool fast = false;
  OptionTable table;

  Fixture() {
    table.Group("Program", "");
    table.Add("workers", &workers, Count(1, 64), "How many");
    table.AddRepeatable("set", &sets, Text("TEXT", "some text"), "Several");
    table.AddSwitch("resume", &resume, "Go on");
    table.Group("[policy]", "who waits for whom");
    table.Add("policy.name", &name, Text("NAME", "a name"), "Which | one");
    table.Add("policy.fast", &fast, TrueOrFalse(), "Hurry");
    table.Group("[liveness]", "when");
    table.Add("liveness.timeout", &timeout_s, DurationSeconds(0.1, 3600), "How long");
    table.Add("liveness.bytes", &bytes, Bytes(1024, 1u << 30), "How much");
    table.Add("liveness.widths", &widths, Counts(1, 100, 3), "How wide");
  }

  std::string CommandLine(const Args& args) { return MessageOf(table.ReadCommandLine(args)); }
  std::string File(std::string_view text) { return MessageOf(table.ReadText(text, "job.ini")); }
  static std::string MessageOf(const Status& status) {
    if (status.ok()) return "";
    EXPECT_EQ(status.error().code, ErrorCode::kInvalid);
    EXPECT_EQ(status.error().message.find('\n'), std::string::npos);
    return status.error().message;
  }
};

TEST(Options, OneDeclarationServesFileAndCommandLine) {
  Fixture f;
  EXPECT_EQ(f.CommandLine(
                {"--workers", "4", "--policy.name=flexrr", "--resume", "--set", "a", "--set=b"}),
            "");
  EXPECT_EQ(f.File("[policy]\nname = backup\nfast = true\n[liveness]\ntimeout = 1.5s\n"
                   "bytes = 4MiB\nwidths = 7, 8\n"),
            "");
  EXPECT_EQ(f.workers, 4u);
  EXPECT_EQ(f.name, "flexrr") << "the command line wins";
  EXPECT_TRUE(f.fast);
  EXPECT_TRUE(f.resume);
  EXPECT_EQ(f.timeout_s, 1.5);
  EXPECT_EQ(f.bytes, 4u << 20);
  EXPECT_THAT(f.widths, ElementsAre(7, 8));
  EXPECT_THAT(f.sets, ElementsAre("a", "b"));
  EXPECT_TRUE(f.table.Given("policy.name"));
  EXPECT_TRUE(f.table.Given("liveness.bytes"));
  Fixture untouched;
  EXPECT_FALSE(untouched.table.Given("policy.name"));
}

TEST(Options, MistakesInTheFileNameLineKeyAndNearestKey) {
  const auto error = [](std::string_view text) { return Fixture().File(text); };
  EXPECT_EQ(error("\n\n\n\n\n[polcy]\nname = a\n"),
            "job.ini:7: unknown key \"polcy.name\" (did you mean \"policy.name\"?)");
  EXPECT_EQ(error("[policy]\n\n[livenes]\n"),
            "job.ini:3: unknown section [livenes] (did you mean [liveness]?)");
  EXPECT_EQ(error("[policy]\nwrong = a\n"),
            "job.ini:2: unknown key \"policy.wrong\"; policy has name, fast");
  EXPECT_EQ(error("[wrong]\nkey = a\n"),
            "job.ini:2: unknown key \"wrong.key\"; the sections are policy, liveness");
  EXPECT_EQ(error("[wrong]\n"), "job.ini:1: unknown section [wrong]; known are policy, liveness");
  EXPECT_EQ(
      error("wrong = a\n"),
      "job.ini:1: key \"wrong\" stands above the first [section]; known are policy, liveness");
  EXPECT_EQ(error("name = a\n"),
            "job.ini:1: key \"name\" stands above the first [section] (did you mean "
            "\"policy.name\"?)");
  EXPECT_EQ(error("[policy]\nname = a\n[liveness]\n[policy]\nname = b\n"),
            "job.ini:5: duplicate key \"policy.name\" (first on line 2)");
  EXPECT_EQ(
      error("[liveness]\ntimeout = 10\n"),
      "job.ini:2: liveness.timeout = \"10\": expected a time with its unit, as 20ms, 10s, 1.5s, "
      "2min or 1h");
  EXPECT_EQ(error("[liveness]\ntimeout = 10ms\n"),
            "job.ini:2: liveness.timeout = \"10ms\": expected a time with its unit, 0.1s to 3600s");
  EXPECT_THAT(error("[liveness]\nbytes = 1000\n"), HasSubstr("1KiB to 1GiB"));
  EXPECT_EQ(error("[policy]\nfast = maybe\n"),
            "job.ini:2: policy.fast = \"maybe\": expected true or false");
  EXPECT_THAT(error("[policy]\nworkers = 3\n"), HasSubstr("unknown key \"policy.workers\""))
      << "an option without a dot is the command line's";
}

TEST(Options, AnOverruledValueIsCheckedAllTheSame) {
  Fixture f;
  EXPECT_EQ(f.CommandLine({"--liveness.timeout=2s"}), "");
  EXPECT_THAT(f.File("[liveness]\ntimeout = soon\n"), StartsWith("job.ini:2: "));
}

TEST(Options, MistakesOnTheCommandLineNameOptionAndNearestOption) {
  const auto error = [](const Args& args) { return Fixture().CommandLine(args); };
  EXPECT_EQ(error({"--polcy.name=x"}),
            "--polcy.name: unknown option (did you mean \"--policy.name\"?)");
  EXPECT_EQ(error({"--polcy.name", "x"}),
            "--polcy.name: unknown option (did you mean \"--policy.name\"?)");
  EXPECT_EQ(error({"--wrong=2"}), "--wrong: unknown option; --help lists the options");
  EXPECT_EQ(error({"--policy.wrong=2"}), "--policy.wrong: unknown option; policy has name, fast");
  EXPECT_EQ(error({"--worker=2"}), "--worker: unknown option (did you mean \"--workers\"?)")
      << "no guessing of abbreviations";
  EXPECT_THAT(error({"-w", "2"}), StartsWith("\"-w\": unexpected argument"));
  EXPECT_THAT(error({"--workers"}), AllOf(StartsWith("--workers"), HasSubstr("needs a value")));
  EXPECT_THAT(error({"--workers="}), AllOf(StartsWith("--workers"), HasSubstr("needs a value")));
  EXPECT_THAT(error({"--resume=yes"}), AllOf(StartsWith("--resume"), HasSubstr("no value")));
  EXPECT_EQ(error({"--workers=2", "--workers=3"}), "--workers: given twice");
  EXPECT_EQ(error({"--workers=0"}), "--workers = \"0\": expected a whole number, 1 to 64");
  EXPECT_EQ(error({"--workers=-1"}), "--workers = \"-1\": expected a whole number, 1 to 64");
  EXPECT_THAT(error({"job.ini"}), StartsWith("\"job.ini\": unexpected argument"));
  EXPECT_THAT(error({"--policy.name=a\nb"}), HasSubstr("control characters"));
  EXPECT_EQ(error({"--set\n="}), "--set?: needs a value");
}

TEST(Options, NoCommandLineThrowsOrBreaksTheLine) {
  std::size_t refused = 0;
  ExpectHolds("every command line ends well or with one line", [&] {
    const auto piece = rc::gen::weightedOneOf<std::string>(
        {{3, rc::gen::element<std::string>("--", "-", "=", "--workers", "--resume", "--set",
                                           "--policy.name", "--workers=", "-w", "")},
         {1, rc::gen::arbitrary<std::string>()}});
    const auto args = *rc::gen::container<Args>(rc::gen::map(
        rc::gen::pair(piece, piece),
        [](const std::pair<std::string, std::string>& p) { return p.first + p.second; }));
    Fixture f;
    const Status read = f.table.ReadCommandLine(args);
    if (read.ok()) return;
    ++refused;
    RC_ASSERT(read.error().message.find('\n') == std::string::npos);
  });
  EXPECT_GT(refused, 30u);
}

TEST(Options, FilesThatAreNoneAreNamed) {
  TempFolder folder;
  Fixture f;
  const auto error = [&](const std::string& path) {
    return Fixture::MessageOf(f.table.ReadFile(path));
  };
  EXPECT_EQ(error(folder.path()), folder.path() + ": is a directory, not a file");
  const std::string fifo = folder.path() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(error(fifo), fifo + ": is not a regular file");
  EXPECT_EQ(error("/dev/zero"), "/dev/zero: is not a regular file");
  EXPECT_EQ(error(folder.path() + "/none.ini"),
            folder.path() + "/none.ini: No such file or directory");
  EXPECT_EQ(error(folder.Write("job.ini", "[policy]\nname = x\n")), "");
  EXPECT_EQ(f.name, "x");
  EXPECT_THAT(error(folder.Write("big.ini", std::string(2u << 20, '#'))), HasSubstr("longer"));
}

TEST(Options, HelpShowsGroupsDefaultsAndForms) {
  Fixture f;
  const std::string help = f.table.Help();
  EXPECT_THAT(help, HasSubstr("[policy]: who waits for whom"));
  EXPECT_THAT(help, HasSubstr("--policy.name NAME (=full)"));
  EXPECT_THAT(help, HasSubstr("--liveness.timeout TIME (=10s)"));
  EXPECT_THAT(help, HasSubstr("--resume"));
  const std::string page = f.table.Markdown();
  EXPECT_THAT(page, HasSubstr("## [policy]"));
  EXPECT_THAT(page, HasSubstr("| `policy.name` | `full` | a name | Which \\| one |"));
  EXPECT_EQ(page.find("--workers"), std::string::npos);
}

TEST(Options, ToIniReadsBack) {
  Fixture f;
  f.name = " # odd \"one\" ";
  f.timeout_s = 0.1 + 0.2;
  f.widths = {};
  Fixture g;
  EXPECT_EQ(g.File(f.table.ToIni()), "");
  EXPECT_EQ(g.name, f.name);
  EXPECT_EQ(g.timeout_s, f.timeout_s);
  EXPECT_EQ(g.widths, f.widths);
  EXPECT_EQ(g.table.ToIni(), f.table.ToIni());
}

TEST(Options, DurationsBearTheirUnit) {
  const auto seconds = [](std::string_view text) {
    const auto parsed = ParseDurationSeconds(text);
    return parsed.ok() ? *parsed : std::nan("");
  };
  EXPECT_EQ(seconds("20ms"), 0.02);
  EXPECT_EQ(seconds("10s"), 10);
  EXPECT_EQ(seconds("1.5s"), 1.5);
  EXPECT_EQ(seconds("250us"), 250e-6);
  EXPECT_EQ(seconds("3ns"), 3e-9);
  EXPECT_EQ(seconds("2min"), 120);
  EXPECT_EQ(seconds("1h"), 3600);
  for (const auto* bad :
       {"", "10", "s", "-1s", "1 s", "1e3s", "infs", "nans", "1.2.3s", "1m", "10S", "+1s", ".s"}) {
    EXPECT_TRUE(std::isnan(seconds(bad))) << bad;
  }
  EXPECT_TRUE(std::isnan(seconds(std::string(500, '9') + "s")));
  EXPECT_EQ(FormatDurationSeconds(0.02), "20ms");
  EXPECT_EQ(FormatDurationSeconds(10), "10s");
  EXPECT_EQ(FormatDurationSeconds(0), "0s");
  ExpectHolds("durations round-trip exactly", [&] {
    const auto bits = *rc::gen::inRange<std::uint64_t>(0, 1ull << 62);
    const double value = std::ldexp(static_cast<double>(bits), -*rc::gen::inRange(0, 90));
    RC_ASSERT(seconds(FormatDurationSeconds(value)) == value);
  });
}

TEST(Options, NumbersAndSizesAreStrict) {
  const auto number = Number(0, 1, true);
  EXPECT_EQ(*number.parse("0.5"), 0.5);
  for (const auto* bad : {"1", "-0.1", "nan", "inf", "", "0.5x", " 0.5", "0x1p-1"}) {
    EXPECT_FALSE(number.parse(bad).ok()) << bad;
  }
  EXPECT_TRUE(Number(0, 1).parse("1").ok());
  const auto bytes = Bytes(0, ~0ull);
  EXPECT_EQ(*bytes.parse("4MiB"), 4u << 20);
  EXPECT_EQ(*bytes.parse("7B"), 7u);
  EXPECT_EQ(*bytes.parse("1048576"), 1048576u);
  for (const auto* bad : {"", "MiB", "4 MiB", "4MB", "4mib", "-1", "1.5MiB", "99999999999GiB"}) {
    EXPECT_FALSE(bytes.parse(bad).ok()) << bad;
  }
  ExpectHolds("sizes and numbers round-trip exactly", [&](std::uint64_t size, double x) {
    RC_ASSERT(*bytes.parse(bytes.format(size)) == size);
    RC_ASSERT(*bytes.parse(bytes.format(size % 4096 << 20)) == size % 4096 << 20);
    RC_PRE(std::isfinite(x));
    const auto any = Number(-1e300, 1e300);
    RC_ASSERT(*any.parse(any.format(x)) == x);
  });
  const auto counts = Counts(1, 9, 3);
  EXPECT_THAT(*counts.parse("1,2,3"), ElementsAre(1, 2, 3));
  EXPECT_THAT(*counts.parse(""), ElementsAre());
  for (const auto* bad : {",", "1,", ",1", "1,,2", "0", "10", "1,2,3,4", "a"}) {
    EXPECT_FALSE(counts.parse(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace lockstep
