// The coordinator behind the codec: a job of three workers, which do what they should wherever the
// bytes say so, and say anything else in between.
#include "coordinator/core/coordinator.h"

#include "base/check.h"
#include "tests/fuzz/target.h"
#include "tests/golden/story.h"
#include "transport/control/codec.h"

namespace lockstep::fuzz {
namespace {

namespace control = transport::control;
using coordinator::Story;

constexpr std::uint32_t kWorkers = 3;
constexpr int kMostSteps = 300;
constexpr const char* kPolicies[] = {"full", "backup+flexrr", "partial+balance", "async"};

enum Step : std::uint8_t {
  kSealAll,
  kSealSome,
  kReceipts,
  kPublished,
  kApplied,
  kPong,
  kReached,
  kWait,
  kDie,
  kJoin,
  kOperator,
  kShell,
  kMessage,  // this one and all above: any message
};

constexpr std::uint8_t kGives = 128;  // of the shell's bytes, those from here on

std::vector<std::uint32_t> Known(const Story& story) {
  std::vector<std::uint32_t> known;
  for (std::uint32_t w = 0; w < kWorkers; ++w) {
    if (story.IsConnected(w)) known.push_back(w);
  }
  return known;
}

// Of worker `w`. False: bytes that are no message.
bool Take(Story& story, std::uint32_t w, std::uint8_t step, Input& input) {
  if (step == kWait) {
    story.Wait(0.05 * input.Byte());
    return true;
  }
  if (step == kOperator) {
    const std::string words(Text(input.Take(input.Byte())));
    switch (input.Byte() % 4) {
      case 0:
        story.Ask(coordinator::SlowdownRequested{words}, "");
        break;
      case 1:
        story.Ask(coordinator::PolicyRequested{words}, "");
        break;
      case 2:
        story.Ask(coordinator::DrainRequested{WorkerId(w)}, "");
        break;
      default:
        story.Interrupt();
    }
    return true;
  }
  if (step == kJoin) {
    if (story.IsConnected(w)) return true;
    story.Hello(w, w);
    if (story.IsConnected(w)) story.Ready(w);
    return true;
  }
  if (!story.IsConnected(w)) return true;
  switch (step) {
    case kSealAll:
      story.Sealed(w, 5);
      break;
    case kSealSome:
      story.Sealed(w, input.Byte(), 1 + input.Byte() % 4);
      break;
    case kReceipts:
      story.Receipts(w, Known(story));
      break;
    case kPublished:
      if (story.HasCommit(w)) story.Published(w);
      break;
    case kApplied:
      if (story.HasCommit(w)) story.Applied(w, input.Byte() % 2);
      break;
    case kPong:
      story.Pong(w);
      break;
    case kReached:
      story.Reached(w);
      break;
    case kDie:
      story.Die(w);
      break;
    case kShell:
      if (const std::uint8_t which = input.Byte(); which >= kGives) {
        const std::uint64_t offset = 4 * (which / 2 % 4);
        const std::size_t floats = 1 + which % 2;
        story.From(w, msg::Given{input.Byte(), offset, std::vector<std::byte>(4 * floats)});
      } else if (which % 2 == 0) {
        story.From(w, msg::CheckpointTaken{which == 0 ? 16u : which});
      } else {
        story.Saved(input.Byte());
      }
      break;
    default: {
      auto message = control::DecodeFromWorker(std::as_bytes(input.TakeChunk()));
      if (!message) {
        LOCKSTEP_CHECK(OneLine(message.error().message), "{}", message.error().message);
        return false;
      }
      story.From(w, *std::move(message));
    }
  }
  return true;
}

template <std::size_t... I>
std::vector<std::string> OneOfEach(std::index_sequence<I...>) {
  std::vector<std::string> messages;
  const auto add = [&messages](msg::FromWorker message) {
    const std::string bytes = control::Encode(message);
    if (control::DecodeFromWorker(std::as_bytes(std::span(bytes)))) messages.push_back(bytes);
  };
  (add(std::variant_alternative_t<I, msg::FromWorker>{}), ...);
  return messages;
}

// The longest times that a worker can name.
std::vector<std::string> LongTimes() {
  constexpr std::int64_t kLast = std::int64_t{1} << 60;
  const UnitTiming first{{UnitIndex(0), {0, 2}}, 0, kLast};
  const UnitTiming second{{UnitIndex(1), {2, 4}}, 0, kLast};
  const UnitTiming last{{UnitIndex(0), {0, 2}}, kLast, kLast};
  const UnitTiming last_too{{UnitIndex(1), {2, 4}}, kLast, kLast};
  std::vector<std::string> messages;
  for (const msg::FromWorker& message : {
           msg::FromWorker(msg::Sealed{
               RoundId(0), PartIndex(0), 4, 0, {first, second}, kLast, Attempt(0), {1, 1}}),
           msg::FromWorker(msg::Sealed{RoundId(0),
                                       PartIndex(0),
                                       4,
                                       0,
                                       {last, last_too},
                                       0,
                                       Attempt(0),
                                       {1, 1},
                                       {},
                                       {8, 4, kLast}}),
           msg::FromWorker(msg::Applied{RoundId(0), Attempt(0), 0, 0xd, kLast}),
           msg::FromWorker(msg::Pong{1, 0, kLast}),
       }) {
    messages.push_back(control::Encode(message));
  }
  return messages;
}

}  // namespace

// A byte of flags (formed already, policy, checkpoints, own parameters); then steps, each a byte:
// what, and whose.
bool Run(Bytes bytes) {
  Input input(bytes);
  const std::uint8_t flags = input.Byte();
  coordinator::StoryOptions options;
  options.workers = kWorkers;
  options.policy = kPolicies[(flags >> 1) % std::size(kPolicies)];
  options.test_samples = (flags & 8) != 0 ? 20 : 0;
  options.rounds = 20;
  options.own_parameters = (flags & 64) != 0;
  Story story("fuzz", options);
  story.Quiet(true);
  if ((flags & 1) == 0) {
    story.Begin();
    story.Quiet(true);
  }
  bool all_taken = true;
  for (int step = 0; step < kMostSteps && !input.empty() && !story.finished(); ++step) {
    const std::uint8_t what = input.Byte();
    all_taken &= Take(story, (what >> 4) % kWorkers, what & 15, input);
  }
  return all_taken;
}

std::vector<std::string> Seeds() {
  const auto by = [](std::uint8_t worker, std::uint8_t step) {
    return std::string(1, static_cast<char>(worker << 4 | step));
  };
  std::string round;
  for (const Step step : {kSealAll, kReceipts, kPublished, kApplied}) {
    for (std::uint8_t w = 0; w < kWorkers; ++w) {
      round += by(w, step);
      if (step == kApplied) round += '\0';
    }
  }
  std::string forming;
  for (const Step step : {kJoin, kReached}) {
    for (std::uint8_t w = 0; w < kWorkers; ++w) forming += by(w, step);
  }
  const std::string wait = by(0, kWait) + "\x28";
  std::vector<std::string> seeds;
  for (const char flags : {0, 2, 4, 6, 8}) {
    seeds.push_back(std::string(1, flags) + round + round + wait + round);
  }
  seeds.push_back(std::string("\1") + forming + round);
  seeds.push_back(std::string(1, '\0') + round + by(1, kDie) + round + wait + by(1, kJoin) + wait +
                  by(0, kReached) + by(1, kReached) + by(2, kReached) + round + round);
  seeds.push_back(std::string(1, '\0') + by(0, kOperator) + "\x08" + "factor=2" +
                  std::string(1, 0) + round + by(2, kOperator) + std::string("\0\2", 2) + round +
                  by(0, kOperator) + std::string("\0\3", 2) + round);
  // Two numbers go from worker 0 to the others, or from worker 1 once that has died.
  const auto gives = [&](std::uint8_t worker, char giving) {
    return by(worker, kShell) + static_cast<char>(kGives + 1) + giving;
  };
  const auto takes = [&](std::uint8_t worker) { return by(worker, kShell) + "\x08"; };
  std::string taken;
  for (std::uint8_t w = 1; w < kWorkers; ++w) taken += takes(w);
  seeds.push_back("\x40" + gives(0, 1) + taken + round + round);
  seeds.push_back("\x40" + by(0, kDie) + gives(1, 2) + taken + by(0, kJoin) + by(0, kReached) +
                  by(1, kReached) + by(2, kReached) + gives(1, 3) + takes(0) + round);
  for (const std::string& message :
       OneOfEach(std::make_index_sequence<std::variant_size_v<msg::FromWorker>>())) {
    seeds.push_back(std::string(1, '\0') + round + by(1, kMessage) + Chunk(message) + round);
  }
  std::string late = round;
  for (const std::string& message : LongTimes()) {
    late = by(0, kMessage) + Chunk(message) + late;
  }
  for (const char flags : {0, 2, 4, 6}) {
    seeds.push_back(std::string(1, flags) + late + wait + round);
  }
  return seeds;
}

}  // namespace lockstep::fuzz
