#include "transport/control/codec.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <limits>
#include <set>
#include <variant>

#include "tests/property_check.h"
#include "tests/unit/control/generate_messages.h"

namespace lockstep::transport::control {
namespace {

using ::testing::HasSubstr;

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string ErrorOf(const msg::ToWorker& message) {
  const auto decoded = DecodeToWorker(BytesOf(Encode(message)));
  return decoded.ok() ? "" : decoded.error().message;
}

std::string ErrorOf(const msg::FromWorker& message) {
  const auto decoded = DecodeFromWorker(BytesOf(Encode(message)));
  return decoded.ok() ? "" : decoded.error().message;
}

constexpr MemberId kZero{WorkerId(0), Incarnation(1)};
constexpr MemberId kOne{WorkerId(1), Incarnation(1)};

msg::Commit SmallCommit() {
  msg::Commit commit;
  commit.steps = 1;
  commit.parts = {{kZero, PartIndex(0), 1.0f, 8}, {kZero, PartIndex(1), 1.0f, 8}};
  commit.owners = {0, {{kZero, 1}, {kOne, 2}}};
  commit.members = {kZero, kOne};
  return commit;
}

TEST(Codec, EveryMessageRoundTrips) {
  std::set<std::size_t> seen;
  for (std::size_t kind = 0; kind < std::variant_size_v<msg::ToWorker>; ++kind) {
    ExpectHolds(fmt::format("to a worker, kind {}", kind), [&] {
      const msg::ToWorker message = AnyToWorker(kind);
      seen.insert(message.index());
      const auto decoded = DecodeToWorker(BytesOf(Encode(message)));
      RC_ASSERT(decoded.ok());
      RC_ASSERT(*decoded == message);
    });
  }
  EXPECT_EQ(seen.size(), std::variant_size_v<msg::ToWorker>) << "the generator leaves some out";
  seen.clear();
  for (std::size_t kind = 0; kind < std::variant_size_v<msg::FromWorker>; ++kind) {
    ExpectHolds(fmt::format("of a worker, kind {}", kind), [&] {
      const msg::FromWorker message = AnyFromWorker(kind);
      seen.insert(message.index());
      const auto decoded = DecodeFromWorker(BytesOf(Encode(message)));
      RC_ASSERT(decoded.ok());
      RC_ASSERT(*decoded == message);
    });
  }
  EXPECT_EQ(seen.size(), std::variant_size_v<msg::FromWorker>) << "the generator leaves some out";
}

TEST(Codec, EmptyAndUnknownBytesAreNoMessage) {
  EXPECT_FALSE(DecodeToWorker({}).ok());
  EXPECT_FALSE(DecodeFromWorker({}).ok());
  EXPECT_FALSE(DecodeToWorker(BytesOf("hello world")).ok());
  EXPECT_EQ(DecodeFromWorker(BytesOf("GET / HTTP/1.1")).error().code, ErrorCode::kInvalid);
}

TEST(Codec, OrderIsPartOfThePromise) {
  EXPECT_EQ(ErrorOf(SmallCommit()), "");
  msg::Commit commit = SmallCommit();
  std::swap(commit.parts[0], commit.parts[1]);
  EXPECT_THAT(ErrorOf(commit), HasSubstr("parts out of order"));
  commit = SmallCommit();
  commit.parts[1] = commit.parts[0];
  EXPECT_THAT(ErrorOf(commit), HasSubstr("parts out of order"));
  commit = SmallCommit();
  std::swap(commit.owners.owners[0], commit.owners.owners[1]);
  EXPECT_THAT(ErrorOf(commit), HasSubstr("owners out of order"));
  commit = SmallCommit();
  commit.members = {kOne, kZero};
  EXPECT_THAT(ErrorOf(commit), HasSubstr("members out of order"));
  Plan plan;
  plan.owners = SmallCommit().owners;
  plan.assignments = {{kOne, {}}, {kZero, {}}};
  EXPECT_THAT(ErrorOf(msg::Start{StateSource::kSeed, plan, 0}),
              HasSubstr("assignments out of order"));
  plan.assignments.clear();
  plan.carries = true;
  EXPECT_THAT(ErrorOf(msg::Start{StateSource::kSeed, plan, 0}), HasSubstr("carried into"));
}

TEST(Codec, WhatCannotBeIsRefused) {
  msg::Commit commit = SmallCommit();
  commit.parts.clear();
  EXPECT_THAT(ErrorOf(commit), HasSubstr("a commit of nothing"));
  commit = SmallCommit();
  commit.owners.owners.clear();
  EXPECT_THAT(ErrorOf(commit), HasSubstr("no owner"));
  commit = SmallCommit();
  commit.owners.owners[0].weight = 0;
  EXPECT_THAT(ErrorOf(commit), HasSubstr("without weight"));
  commit = SmallCommit();
  commit.parts[1].part = PartIndex(2);
  EXPECT_THAT(ErrorOf(commit), HasSubstr("part that cannot be"));
  EXPECT_THAT(ErrorOf(msg::TakeSums{commit, kZero}), HasSubstr("part that cannot be"));
  EXPECT_THAT(ErrorOf(msg::Evaluate{1, RoundId(0), {5, 4}}), HasSubstr("ends before it begins"));
  EXPECT_THAT(ErrorOf(msg::Welcome{kZero, Term(1), "job", {}, ""}), HasSubstr("job key"));
  EXPECT_THAT(ErrorOf(msg::EvaluationResult{1, {0, 4}, 0, 5}), HasSubstr("more hits"));
  EXPECT_THAT(ErrorOf(msg::Standbys{{"10.0.0.2:7070", "10.0.0.2"}}),
              HasSubstr("address that is none"));
  EXPECT_THAT(ErrorOf(msg::Standbys{std::vector<std::string>(9, "10.0.0.2:7070")}),
              HasSubstr("too many entries"));
  msg::Hello hello;
  hello.standby = msg::StandbyHello{.address = "nowhere"};
  EXPECT_THAT(ErrorOf(hello), HasSubstr("address that is none"));
  EXPECT_THAT(ErrorOf(msg::Followed{.text = std::string(kMaxChunkBytes + 1, 'x')}),
              HasSubstr("too many bytes"));
  EXPECT_THAT(ErrorOf(msg::ToWorker(msg::StateChunk{RoundId(0), 0, ~0ull, false, {std::byte{1}}})),
              HasSubstr("beyond all tensors"));
  // A source of state that this build does not know: kind 5 (Start), field 1 with the value 9.
  EXPECT_THAT(DecodeToWorker(BytesOf(std::string("\x2a\x02\x08\x09"))).error().message,
              HasSubstr("unknown source of state"));
}

// Whoever gets them adds and subtracts a few without a look.
TEST(Codec, TimesAreSuchAsAClockHas) {
  constexpr std::int64_t kLast = std::int64_t{1} << 60;
  constexpr std::int64_t kBad[] = {std::numeric_limits<std::int64_t>::min(), -1, kLast + 1,
                                   std::numeric_limits<std::int64_t>::max()};
  const auto errors = [](std::int64_t ns) {
    msg::Sealed started;
    started.units = {{{}, ns, kLast}};
    msg::Sealed ended;
    ended.units = {{{}, 0, ns}};
    msg::Sealed sealed;
    sealed.sealed_ns = ns;
    msg::Applied applied;
    applied.applied_ns = ns;
    msg::Applied ran;
    ran.runs.took_ns = ns;
    msg::Applied waited;
    waited.runs.reading.waited_ns = static_cast<std::uint64_t>(ns);
    msg::Sealed waited_in_part;
    waited_in_part.reading.waited_ns = static_cast<std::uint64_t>(ns);
    return std::vector<std::string>{
        ErrorOf(msg::FromWorker(started)),
        ErrorOf(msg::FromWorker(ended)),
        ErrorOf(msg::FromWorker(sealed)),
        ErrorOf(msg::FromWorker(applied)),
        ErrorOf(msg::FromWorker(ran)),
        ErrorOf(msg::FromWorker(waited)),
        ErrorOf(msg::FromWorker(waited_in_part)),
        ErrorOf(msg::Pong{1, ns, 0}),
        ErrorOf(msg::Pong{1, 0, ns}),
        ErrorOf(msg::Ping{1, ns}),
        ErrorOf(msg::Welcome{kZero, Term(1), "job", std::vector<std::byte>(32), "", 1, ns})};
  };
  for (const std::int64_t ns : {std::int64_t{0}, kLast}) {
    EXPECT_THAT(errors(ns), ::testing::Each("")) << ns;
  }
  for (const std::int64_t ns : kBad) {
    EXPECT_THAT(errors(ns), ::testing::Each(HasSubstr("a time that cannot be"))) << ns;
  }
}

TEST(Codec, CountsAndSizesAreBounded) {
  EXPECT_EQ(ErrorOf(msg::Assign{RoundId(0), std::vector<Unit>(kMaxUnits)}), "");
  EXPECT_THAT(ErrorOf(msg::Assign{RoundId(0), std::vector<Unit>(kMaxUnits + 1)}),
              HasSubstr("too many units"));
  msg::Commit commit = SmallCommit();
  commit.next = Plan{};
  commit.next->owners = commit.owners;
  commit.next->assignments = {{kZero, std::vector<Unit>(kMaxUnits)}, {kOne, {Unit{}}}};
  EXPECT_THAT(ErrorOf(commit), HasSubstr("too many units"));
  msg::Ready ready;
  ready.transports.resize(kMaxTransports + 1);
  EXPECT_THAT(ErrorOf(ready), HasSubstr("too many entries"));
  ready.transports = {{"ucx", std::string(kMaxAddressBytes + 1, 'a'), ""}};
  EXPECT_THAT(ErrorOf(ready), HasSubstr("address that is too long"));
  EXPECT_THAT(ErrorOf(msg::Welcome{kZero, Term(1), "job", std::vector<std::byte>(32),
                                   std::string(kMaxConfigBytes + 1, '#')}),
              HasSubstr("config that is too long"));
  msg::Sealed sealed;
  sealed.reading.ahead = msg::kMaxSamplesAhead;
  EXPECT_EQ(ErrorOf(msg::FromWorker(sealed)), "");
  ++*sealed.reading.ahead;
  EXPECT_THAT(ErrorOf(msg::FromWorker(sealed)), HasSubstr("samples ahead that cannot be"));
  sealed.reading.ahead.reset();
  for (const double squares : {-1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    sealed.sampled_squares = squares;
    EXPECT_THAT(ErrorOf(msg::FromWorker(sealed)), HasSubstr("squares that cannot be"));
  }
  EXPECT_THAT(ErrorOf(msg::ToWorker(msg::StateChunk{RoundId(0), 0, 0, false,
                                                    std::vector<std::byte>(kMaxChunkBytes + 1)})),
              HasSubstr("too many bytes"));
}

// A plan for workers 0 to `workers` - 1 in which units are cut out of `range`.
Plan CutPlan(std::uint32_t workers, std::uint32_t units_each, SampleRange range) {
  Plan plan;
  const std::uint64_t pieces = std::uint64_t{workers} * units_each;
  std::uint32_t index = 0;
  for (std::uint32_t w = 0; w < workers; ++w) {
    const MemberId member{WorkerId(w), Incarnation(1)};
    plan.members.push_back(member);
    plan.owners.owners.push_back({member, 1});
    plan.assignments.push_back({member, {}});
    for (std::uint32_t u = 0; u < units_each; ++u, ++index) {
      plan.assignments.back().units.push_back({UnitIndex(index),
                                               {range.from + range.size() * index / pieces,
                                                range.from + range.size() * (index + 1) / pieces}});
    }
  }
  return plan;
}

Plan RoundTrip(const Plan& plan) {
  const auto decoded =
      DecodeToWorker(BytesOf(Encode(msg::ToWorker(msg::Start{StateSource::kSeed, plan, 0}))));
  EXPECT_TRUE(decoded.ok()) << (decoded.ok() ? "" : decoded.error().message);
  return decoded.ok() ? std::get<msg::Start>(*decoded).plan : Plan{};
}

TEST(Codec, ListsOfAThousandTakeAFewBytes) {
  const Plan plan = CutPlan(1000, 4, {123456789, 123456789 + 64001});
  EXPECT_EQ(RoundTrip(plan), plan);
  EXPECT_LT(Encode(msg::ToWorker(msg::Start{StateSource::kSeed, plan, 0})).size(), 100u);

  msg::Receipts receipts{RoundId(7), 1, {}};
  for (const MemberId& member : plan.members) receipts.parts.push_back({member, PartIndex(0)});
  const std::string bytes = Encode(msg::FromWorker(receipts));
  EXPECT_LT(bytes.size(), 30u);
  EXPECT_EQ(std::get<msg::Receipts>(*DecodeFromWorker(BytesOf(bytes))), receipts);
}

// Who knows nothing of the field leaves it out, and reads what has it.
TEST(Codec, APongWithoutMemoryIsWhatItWasBefore) {
  const std::string bytes = Encode(msg::FromWorker(msg::Pong{1, 2, 3}));
  EXPECT_EQ(bytes, "\x92\x01\x06\x08\x01\x10\x02\x18\x03");
  EXPECT_EQ(std::get<msg::Pong>(*DecodeFromWorker(BytesOf(bytes))), (msg::Pong{1, 2, 3, 0}));
  EXPECT_EQ(Encode(msg::FromWorker(msg::Pong{1, 2, 3, 200})),
            "\x92\x01\x09\x08\x01\x10\x02\x18\x03\x20\xc8\x01");
}

TEST(Codec, RunsEndWhereSomethingDiffers) {
  Plan plan = CutPlan(60, 3, {0, 1007});
  plan.members[7].incarnation = Incarnation(2);
  plan.members.erase(plan.members.begin() + 20);
  plan.owners.owners[9].weight = 5;
  plan.assignments[11].member.incarnation = Incarnation(3);
  plan.assignments[30].units.pop_back();        // a gap, other counts
  plan.assignments[40].units[1].range.to += 1;  // overlaps the next one
  std::swap(plan.assignments[50].units[0], plan.assignments[50].units[2]);
  EXPECT_EQ(RoundTrip(plan), plan);
}

TEST(Codec, RunsOfWhatCannotBeAreRefused) {
  using namespace std::string_view_literals;
  // 20,000 from worker 1 on; worker 2^32 - 2 and two more.
  const auto many = "\x08\x01\x10\x01\x18\xa0\x9c\x01"sv;
  const auto beyond = "\x08\xfe\xff\xff\xff\x0f\x10\x01\x18\x03"sv;
  msg::Commit commit = SmallCommit();
  const auto with_members = [&](std::string_view run) {
    // The members at the end of a commit that is good without them.
    commit.members.clear();
    const std::string good = Encode(msg::ToWorker(commit));
    std::string body = good.substr(2);
    body += "\x3a";
    body += static_cast<char>(run.size());
    body += run;
    EXPECT_LT(body.size(), 128u);
    const auto decoded =
        DecodeToWorker(BytesOf(std::string("\x32") + static_cast<char>(body.size()) + body));
    return decoded.ok() ? std::string() : decoded.error().message;
  };
  EXPECT_EQ(with_members("\x08\x01\x10\x01\x18\x02"sv), "");
  EXPECT_THAT(with_members("\x08\x01\x10\x01"sv), HasSubstr("a run of nobody"));
  EXPECT_THAT(with_members(many), HasSubstr("too many entries"));
  EXPECT_THAT(with_members(beyond), HasSubstr("beyond all workers"));
}

TEST(Codec, TensorsAddUpToTheParameters) {
  msg::Ready ready;
  ready.parameter_count = 12;
  EXPECT_EQ(ErrorOf(ready), "");
  ready.tensors = {{"w", {2, 5}}, {"b", {2}}};
  EXPECT_EQ(ErrorOf(ready), "");
  ready.parameter_count = 13;
  EXPECT_THAT(ErrorOf(ready), HasSubstr("not the whole model"));
  ready.parameter_count = 11;
  EXPECT_THAT(ErrorOf(ready), HasSubstr("larger than the model"));
  ready.tensors = {{"w", {1ull << 32, 1ull << 32}}, {"b", {11}}};
  EXPECT_THAT(ErrorOf(ready), HasSubstr("larger than the model")) << "its product overflows to 0";
  ready.tensors = {{"w", std::vector<std::uint64_t>(kMaxDimensions + 1, 1)}};
  EXPECT_THAT(ErrorOf(ready), HasSubstr("dimensions"));
}

// What a host or a device is called stands in logs and on terminals: it makes no line of its own
// there and moves no cursor.
TEST(Codec, TextsStayOnOneLine) {
  msg::Hello hello;
  hello.host = "node\n12:00:00.000 coordinator error the job has failed";
  hello.device =
      "\x1b[2Jcpu\x7f\r \xc2\x9b"
      "31m \xff";
  hello.version = "B\xc3\xa4r";
  const auto decoded = DecodeFromWorker(BytesOf(Encode(msg::FromWorker(hello))));
  ASSERT_TRUE(decoded.ok());
  const auto& got = std::get<msg::Hello>(*decoded);
  EXPECT_EQ(got.host, "node?12:00:00.000 coordinator error the job has failed");
  EXPECT_EQ(got.device, "?[2Jcpu?? ?31m ?");
  EXPECT_EQ(got.version, hello.version);
  const auto refused = DecodeToWorker(BytesOf(Encode(msg::ToWorker(msg::Refuse{"a\nb", false}))));
  ASSERT_TRUE(refused.ok());
  EXPECT_EQ(std::get<msg::Refuse>(*refused).reason, "a?b");
}

long PeakKib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

// A few bytes in a message can stand for a large object: there are not more of them than any
// message of ours has, and none is made before that is known.
TEST(Codec, AMessageTakesAboutTheMemoryOfItsBytes) {
  const auto ready_of = [](const std::string& field, std::size_t bytes) {
    std::string body;
    body.reserve(bytes + field.size());
    while (body.size() + field.size() <= bytes) body += field;
    // FromWorker::ready, and its length.
    std::string message("\x12");
    for (std::size_t rest = body.size();; rest >>= 7) {
      message += static_cast<char>((rest & 0x7f) | (rest > 0x7f ? 0x80 : 0));
      if (rest <= 0x7f) break;
    }
    return message + body;
  };
  std::string packed("\x42\x80\x80\x40\x12\xfc\xff\x3f", 8);  // a tensor of a million extents
  packed += std::string(0xffffc, '\0');
  const std::string some[] = {std::string("\x42\0", 2),  // tensors without anything
                              std::string("\x4a\0", 2),  // names of state without a letter
                              packed, std::string("\xf8\x01\0", 3)};  // a field that is not known
  for (const std::string& field : some) {
    const std::string message = ready_of(field, 8u << 20);
    const long before = PeakKib();
    EXPECT_FALSE(DecodeFromWorker(BytesOf(message)).ok());
    EXPECT_LT(PeakKib() - before, 8 << 10);
  }
  msg::Sealed sealed;
  sealed.units.resize(kMaxUnits);
  for (std::uint32_t i = 0; i < kMaxUnits; ++i) {
    sealed.units[i] = {{UnitIndex(i), {i + 1ull, i + 2ull}}, 1, std::int64_t{1} << 60};
  }
  EXPECT_EQ(ErrorOf(msg::FromWorker(sealed)), "") << "as large as they come";
}

// They are shown where a connection fails, in the logs of others.
TEST(Codec, AddressesHaveNoLinesOfTheirOwn) {
  for (const std::string bad : {"x\n18:00:00 the job has ended", "\x1b[31m", "\xff", "a\tb"}) {
    msg::Ready ready;
    ready.transports = {{"tcp", bad, ""}};
    EXPECT_THAT(ErrorOf(msg::FromWorker(ready)), HasSubstr("address with unprintable"));
    ready.transports.clear();
    ready.mapping_address = bad;
    EXPECT_THAT(ErrorOf(msg::FromWorker(ready)), HasSubstr("address with unprintable"));
    const msg::Form form{1, "tcp", {{kOne, bad, "", "host"}}, {}};
    EXPECT_THAT(ErrorOf(msg::ToWorker(form)), HasSubstr("address with unprintable"));
  }
}

TEST(Codec, LongReasonsAreCutNotRefused) {
  const auto decoded =
      DecodeFromWorker(BytesOf(Encode(msg::FromWorker(msg::Leave{std::string(100000, 'x')}))));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(std::get<msg::Leave>(*decoded).reason.size(), kMaxTextBytes);
}

TEST(Codec, ScalarsAreFiniteButLossesNeedNotBe) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  msg::Commit commit = SmallCommit();
  commit.scale = static_cast<float>(nan);
  EXPECT_THAT(ErrorOf(commit), HasSubstr("no number"));
  commit = SmallCommit();
  commit.learning_rate = std::numeric_limits<float>::infinity();
  EXPECT_THAT(ErrorOf(commit), HasSubstr("no number"));
  commit = SmallCommit();
  commit.fraction = static_cast<float>(nan);
  EXPECT_THAT(ErrorOf(commit), HasSubstr("no part of a step"));
  commit.fraction = 0;
  EXPECT_THAT(ErrorOf(commit), HasSubstr("no part of a step"));
  commit = SmallCommit();
  commit.steps = 0;
  EXPECT_THAT(ErrorOf(commit), HasSubstr("before the first step"));
  commit = SmallCommit();
  commit.parts[0].weight = static_cast<float>(nan);
  EXPECT_THAT(ErrorOf(commit), HasSubstr("no number"));
  commit = SmallCommit();
  commit.slow = {16384};
  EXPECT_THAT(ErrorOf(commit), HasSubstr("slow workers"));
  EXPECT_THAT(ErrorOf(msg::Reached{1, {{kZero, true, "", false, "tcp", nan}}}),
              HasSubstr("no number"));
  msg::Sealed sealed;
  sealed.loss_sum = nan;
  const auto decoded = DecodeFromWorker(BytesOf(Encode(msg::FromWorker(sealed))));
  ASSERT_TRUE(decoded.ok());
  EXPECT_TRUE(std::isnan(std::get<msg::Sealed>(*decoded).loss_sum));
  sealed.divisor = kMaxPartDivisor + 1;
  const auto refused = DecodeFromWorker(BytesOf(Encode(msg::FromWorker(sealed))));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("divisor"));
}

}  // namespace
}  // namespace lockstep::transport::control
