// Arbitrary bytes as a stream of frames, and as either kind of message: no crash, and what is taken
// is taken the same way when it is sent on.
#include <variant>

#include "base/check.h"
#include "tests/fuzz/target.h"
#include "transport/control/codec.h"
#include "transport/control/frame.h"

namespace lockstep::fuzz {
namespace {

namespace control = transport::control;

template <class Message, class Decode>
bool Check(std::span<const std::byte> bytes, Decode&& decode) {
  const Result<Message> message = decode(bytes);
  if (!message) {
    LOCKSTEP_CHECK(message.error().message.size() < 200 && OneLine(message.error().message));
    return false;
  }
  // Compared as bytes, since a loss may be no number and so unequal to itself.
  const std::string once = control::Encode(*message);
  const Result<Message> again = decode(std::as_bytes(std::span(once)));
  LOCKSTEP_CHECK(again.ok(), "{}", again.ok() ? "" : again.error().message);
  LOCKSTEP_CHECK(control::Encode(*again) == once, "a message changes on the way");
  return true;
}

bool CheckBoth(std::span<const std::byte> bytes) {
  const bool to = Check<msg::ToWorker>(bytes, control::DecodeToWorker);
  return Check<msg::FromWorker>(bytes, control::DecodeFromWorker) || to;
}

template <class Message, std::size_t... I>
void AddOneOfEach(std::index_sequence<I...>, std::vector<std::string>* seeds) {
  (seeds->push_back(
       control::FrameOf(control::Encode(Message(std::variant_alternative_t<I, Message>{})))),
   ...);
}

}  // namespace

bool Run(Bytes raw) {
  const auto bytes = std::as_bytes(raw);
  bool taken = CheckBoth(bytes);
  control::FrameReader reader(1u << 16);
  // In two cuts, so that a frame is also met half there.
  for (const auto part : {bytes.first(bytes.size() / 2), bytes.subspan(bytes.size() / 2)}) {
    reader.Append(part);
    while (true) {
      const auto frame = reader.Next();
      if (!frame) return taken;
      if (!*frame) break;
      taken = CheckBoth(**frame) || taken;
    }
  }
  return taken;
}

std::vector<std::string> Seeds() {
  std::vector<std::string> all;
  AddOneOfEach<msg::ToWorker>(std::make_index_sequence<std::variant_size_v<msg::ToWorker>>(), &all);
  AddOneOfEach<msg::FromWorker>(std::make_index_sequence<std::variant_size_v<msg::FromWorker>>(),
                                &all);
  // Some need a field or two to be any good.
  std::vector<std::string> seeds;
  for (std::string& one : all) {
    const std::vector<std::uint8_t> exact(one.begin(), one.end());
    if (Run(exact)) seeds.push_back(std::move(one));
  }
  return seeds;
}

}  // namespace lockstep::fuzz
