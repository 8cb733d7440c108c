#include "base/slowdown_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/slowdown_trace.h"
#include "tests/property_check.h"
#include "tests/unit/options/temp_file.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;

std::string ErrorOf(std::string_view text) {
  const auto spec = ParseSlowdownSpec(text);
  if (spec.ok()) return "";
  EXPECT_EQ(spec.error().code, ErrorCode::kInvalid);
  EXPECT_EQ(spec.error().message.find('\n'), std::string::npos);
  return spec.error().message;
}

TEST(SlowdownSpec, ReadsEachPattern) {
  const auto read = [](std::string_view text) {
    const auto spec = ParseSlowdownSpec(text);
    EXPECT_TRUE(spec.ok()) << text << ": " << (spec.ok() ? "" : spec.error().message);
    return spec.ok() ? *spec : SlowdownSpec{};
  };
  const auto constant = read("worker=2,factor=4,from=10s,for=5s,seed=9");
  EXPECT_EQ(constant.pattern, SlowdownPattern::kConstant);
  EXPECT_EQ(constant.worker, WorkerId(2));
  EXPECT_EQ(constant.factor, 4);
  EXPECT_EQ(constant.from, 10s);
  EXPECT_EQ(constant.length, 5s);
  EXPECT_EQ(constant.seed, 9u);
  const auto slow = read("pattern=slow-worker,p=0.1,factor=2..5,delay=10ms..50ms");
  EXPECT_EQ(slow.factor, 2);
  EXPECT_EQ(slow.factor_most, 5);
  EXPECT_EQ(slow.delay, 10ms);
  EXPECT_EQ(slow.delay_most, 50ms);
  EXPECT_EQ(slow.probability, 0.1);
  EXPECT_EQ(read("delay=1s,p=1,pattern=slow-worker").delay_most, 1s) << "in any order";
  EXPECT_EQ(read("pattern=disrupted,factor=3,length=20s,gap=5s,workers=8").workers, 8u);
  EXPECT_EQ(read("pattern=power-law,alpha=1.5,max=10").most, 10);
  EXPECT_EQ(read("pattern=pause,every=10s,length=1s").spell, 1s);
  EXPECT_EQ(read("pattern=blog,p=0.02,times=18").pattern, SlowdownPattern::kDelay);
  EXPECT_EQ(read("pattern=trace,file=a.txt,loop=1").file, "a.txt");
  EXPECT_EQ(read("pattern=trace,points=0:1;0.5:4").points.back(), (TracePoint{500ms, 4}));
}

TEST(SlowdownSpec, MistakesNameTheKey) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("expected key=value"));
  EXPECT_THAT(ErrorOf("factor=2,"), HasSubstr("expected key=value"));
  EXPECT_THAT(ErrorOf("worker=2"), HasSubstr("factor is missing"));
  EXPECT_THAT(ErrorOf("factor=0.5"), HasSubstr("factor = \"0.5\""));
  EXPECT_THAT(ErrorOf("factor=nan"), HasSubstr("expected a number"));
  EXPECT_THAT(ErrorOf("factor=2..3"), HasSubstr("for slow-worker only"));
  EXPECT_THAT(ErrorOf("factor=2,factor=3"), HasSubstr("given twice"));
  EXPECT_THAT(ErrorOf("factor=2,worker=-1"), HasSubstr("worker"));
  EXPECT_THAT(ErrorOf("factor=2,from=10"), HasSubstr("unit"));
  EXPECT_THAT(ErrorOf("factro=2"), HasSubstr("did you mean \"factor\"?"));
  EXPECT_THAT(ErrorOf("rate=2"),
              AllOf(HasSubstr("unknown key; known are pattern, worker, factor, "),
                    Not(HasSubstr("did you mean"))));
  EXPECT_THAT(ErrorOf("pattern=wild"), HasSubstr("unknown pattern; known are constant, "));
  EXPECT_THAT(ErrorOf("pattern=powerlaw,alpha=1"), HasSubstr("did you mean \"power-law\"?"));
  EXPECT_THAT(ErrorOf("pattern=pause,factor=2"), HasSubstr("no key of pattern pause"));
  EXPECT_THAT(ErrorOf("pattern=pause,every=1s"), HasSubstr("length is missing"));
  EXPECT_THAT(ErrorOf("pattern=pause,every=1s,length=1s"), HasSubstr("less than every"));
  EXPECT_THAT(ErrorOf("pattern=pause,every=1us,length=1s"), HasSubstr("at least 1 ms"));
  EXPECT_THAT(ErrorOf("pattern=slow-worker,p=2,factor=2"), HasSubstr("p = \"2\""));
  EXPECT_THAT(ErrorOf("pattern=slow-worker,p=0.5"), HasSubstr("needs factor or delay"));
  EXPECT_THAT(ErrorOf("pattern=slow-worker,p=0.5,factor=5..2"), HasSubstr("smaller one first"));
  EXPECT_THAT(ErrorOf("pattern=power-law,alpha=0,max=2"), HasSubstr("alpha"));
  EXPECT_THAT(ErrorOf("pattern=trace"), HasSubstr("needs file or points"));
  EXPECT_THAT(ErrorOf("pattern=trace,points=0:1,file=x"), HasSubstr("one of them"));
  EXPECT_THAT(ErrorOf("pattern=trace,points=1:1;1:2"), HasSubstr("ascending"));
  EXPECT_THAT(ErrorOf("pattern=trace,points=1"), HasSubstr("SECONDS:FACTOR"));
  EXPECT_THAT(ErrorOf("pattern=trace,points=0:2,loop=1"), HasSubstr("loops"));
  EXPECT_THAT(ErrorOf("pattern=disrupted,factor=2,length=1s,worker=1,workers=4"),
              HasSubstr("one of them"));
  EXPECT_EQ(ErrorOf("pattern=constant,factor=2"), "");
}

SlowdownSpec AnySpec() {
  const auto time = [] {
    return Duration(*rc::gen::inRange<std::int64_t>(1'000'000, 1'000'000'000'000));
  };
  const auto factor = [] { return 1 + *rc::gen::inRange(0, 1000000) / 7.0; };
  SlowdownSpec spec;
  spec.pattern = static_cast<SlowdownPattern>(
      *rc::gen::inRange(0, static_cast<int>(SlowdownPattern::kTrace) + 1));
  if (*rc::gen::arbitrary<bool>()) spec.worker = WorkerId(*rc::gen::arbitrary<std::uint32_t>());
  spec.from = time();
  if (*rc::gen::arbitrary<bool>()) spec.length = time();
  spec.seed = *rc::gen::arbitrary<std::uint64_t>();
  switch (spec.pattern) {
    case SlowdownPattern::kConstant:
      spec.factor = spec.factor_most = factor();
      break;
    case SlowdownPattern::kSlowWorker:
      spec.probability = *rc::gen::inRange(0, 1001) / 1000.0;
      spec.factor = factor();
      spec.factor_most = spec.factor + factor();
      spec.delay = time();
      spec.delay_most = spec.delay + time();
      break;
    case SlowdownPattern::kDisrupted:
      spec.factor = spec.factor_most = factor();
      spec.spell = time();
      spec.gap = time();
      if (!spec.worker) spec.workers = *rc::gen::inRange(0u, 100u);
      break;
    case SlowdownPattern::kPowerLaw:
      spec.alpha = factor() / 1000;
      spec.alpha = std::max(spec.alpha, 0.01);
      spec.most = factor();
      break;
    case SlowdownPattern::kPause:
      spec.spell = time();
      spec.every = spec.spell + time();
      break;
    case SlowdownPattern::kDelay:
      spec.probability = *rc::gen::inRange(0, 1001) / 1000.0;
      spec.times = factor();
      break;
    case SlowdownPattern::kTrace: {
      const int count = *rc::gen::inRange(1, 6);
      Duration at{};
      for (int i = 0; i < count; ++i) {
        at += time();
        spec.points.push_back({at, factor() / 100});
      }
      spec.loop = *rc::gen::arbitrary<bool>();
      break;
    }
  }
  return spec;
}

TEST(SlowdownSpec, RoundTrips) {
  ExpectHolds("ParseSlowdownSpec(ToString(spec)) is spec", [] {
    const SlowdownSpec spec = AnySpec();
    const auto back = ParseSlowdownSpec(ToString(spec));
    if (!back.ok()) RC_FAIL(ToString(spec) + ": " + back.error().message);
    if (*back != spec) RC_FAIL(ToString(spec) + " became " + ToString(*back));
  });
}

TEST(SlowdownLines, AreOneSpecEach) {
  const auto two = ParseSlowdownLines("worker=1,factor=2\n\n  \r\nfactor=3");
  ASSERT_TRUE(two.ok()) << two.error().message;
  ASSERT_EQ(two->size(), 2u);
  EXPECT_EQ((*two)[1].factor, 3);
  EXPECT_TRUE(ParseSlowdownLines("")->empty());
  EXPECT_FALSE(ParseSlowdownLines("factor=2\nfactor=x").ok());
  const auto file = ParseSlowdownLines("pattern=trace,file=/etc/passwd");
  ASSERT_FALSE(file.ok()) << "whoever sends lines has no business in our files";
  EXPECT_THAT(file.error().message, HasSubstr("no file is read here"));
  const auto own = ParseSlowdownLines("pattern=trace,file=/a", SlowdownFiles::kTaken);
  ASSERT_TRUE(own.ok()) << own.error().message;
  EXPECT_EQ(own->front().file, "/a");
  std::string many;
  for (std::size_t i = 0; i <= kMaxSlowdownSpecs; ++i) many += "factor=2\n";
  EXPECT_FALSE(ParseSlowdownLines(many).ok());
}

TEST(SlowdownTrace, ReadsLinesOfSecondsAndFactors) {
  const auto points = ParseTrace("# recorded\n0 1\n\n2.5 4 # slow\n10\t0.9\n", "t");
  ASSERT_TRUE(points.ok()) << points.error().message;
  EXPECT_EQ(*points, (std::vector<TracePoint>{{0s, 1}, {2500ms, 4}, {10s, 0.9}}));
  const auto wrong = [](std::string_view text) {
    const auto parsed = ParseTrace(text, "t");
    return parsed.ok() ? "" : parsed.error().message;
  };
  EXPECT_EQ(wrong("0 1\n1 fast\n"), "t:2: expected SECONDS FACTOR, as 12.5 4");
  EXPECT_THAT(wrong("0 1 2"), HasSubstr("t:1: expected"));
  EXPECT_THAT(wrong("0"), HasSubstr("t:1: expected"));
  EXPECT_THAT(wrong("0 1;5:5"), HasSubstr("t:1: expected"));
  EXPECT_THAT(wrong("5 1\n5 2"), HasSubstr("t:2: times must be ascending"));
  EXPECT_THAT(wrong("# nothing\n"), HasSubstr("no line"));
}

TEST(SlowdownTrace, IsLoadedFromItsFile) {
  const TempFolder folder;
  auto spec = ParseSlowdownSpec("pattern=trace,loop=1,file=" + folder.Write("two", "0 1\n3 5\n"));
  ASSERT_TRUE(spec.ok());
  ASSERT_TRUE(LoadTrace(&*spec).ok());
  EXPECT_EQ(ToString(*spec), "pattern=trace,points=0:1;3:5,loop=1");
  auto missing = ParseSlowdownSpec("pattern=trace,file=/nowhere");
  EXPECT_THAT(LoadTrace(&*missing).error().message, HasSubstr("/nowhere: No such file"));
  const std::string fifo = folder.path() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  auto waits = ParseSlowdownSpec("pattern=trace,file=" + fifo);
  EXPECT_THAT(LoadTrace(&*waits).error().message, HasSubstr("is not a regular file"));
  auto loop = ParseSlowdownSpec("pattern=trace,loop=1,file=" + folder.Write("one", "0 2\n"));
  EXPECT_THAT(LoadTrace(&*loop).error().message, HasSubstr("loops"));
}

}  // namespace
}  // namespace lockstep
