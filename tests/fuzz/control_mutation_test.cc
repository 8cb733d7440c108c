// Every kind of message, well-formed and then damaged, through the fuzz target.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <variant>

#include "tests/fuzz/target.h"
#include "tests/property_check.h"
#include "tests/unit/control/generate_messages.h"
#include "transport/control/codec.h"
#include "transport/control/frame.h"

namespace lockstep::transport::control {
namespace {

void RunTarget(const std::string& bytes) {
  // A copy of exactly this size, so that the sanitizer sees a read beyond it.
  const std::vector<std::uint8_t> copy(bytes.begin(), bytes.end());
  fuzz::Run(copy);
}

void Damage(std::string& bytes) {
  const auto at = [&] { return *rc::gen::inRange<std::size_t>(0, bytes.size() + 1); };
  switch (*rc::gen::inRange(0, 4)) {
    case 0:
      if (!bytes.empty()) {
        bytes[at() % bytes.size()] ^= static_cast<char>(1 << *rc::gen::inRange(0, 8));
      }
      break;
    case 1:
      bytes.erase(at(), *rc::gen::inRange<std::size_t>(1, 9));
      break;
    case 2:
      bytes.insert(at(), *rc::gen::inRange<std::size_t>(1, 9), static_cast<char>(Any<char>()));
      break;
    default:
      bytes.insert(at(), bytes.substr(at() / 2, 16));
  }
}

TEST(ControlMutation, DamagedMessagesAreRefusedOrHarmless) {
  const auto damage = [](std::string bytes) {
    if (Any<bool>()) bytes = FrameOf(bytes) + FrameOf(bytes);
    RunTarget(bytes);
    for (int i = 0; i < 30; ++i) {
      Damage(bytes);
      RunTarget(bytes);
    }
  };
  for (std::size_t kind = 0; kind < std::variant_size_v<msg::ToWorker>; ++kind) {
    ExpectHolds(fmt::format("to a worker, kind {}", kind),
                [&] { damage(Encode(AnyToWorker(kind))); });
  }
  for (std::size_t kind = 0; kind < std::variant_size_v<msg::FromWorker>; ++kind) {
    ExpectHolds(fmt::format("of a worker, kind {}", kind),
                [&] { damage(Encode(AnyFromWorker(kind))); });
  }
}

TEST(ControlMutation, CornersOfTheFormat) {
  RunTarget("");
  for (int first = 0; first < 256; ++first) {
    RunTarget(std::string(1, static_cast<char>(first)));
    RunTarget(std::string(2, static_cast<char>(first)));
    RunTarget(std::string(300, static_cast<char>(first)));
  }
  // Groups within groups, which protobuf reads by recursion.
  RunTarget(std::string(100000, '\x0b'));
}

}  // namespace
}  // namespace lockstep::transport::control
