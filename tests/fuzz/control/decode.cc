// Arbitrary bytes as a stream of frames, and as either kind of message: no crash, and what is taken
// is taken the same way when it is sent on.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "transport/control/codec.h"
#include "transport/control/frame.h"

namespace lockstep::transport::control {
namespace {

template <class Message, class Decode>
void Check(std::span<const std::byte> bytes, Decode&& decode) {
  const Result<Message> message = decode(bytes);
  if (!message) {
    LOCKSTEP_CHECK(message.error().message.size() < 200);
    return;
  }
  // Compared as bytes, since a loss may be no number and so unequal to itself.
  const std::string once = Encode(*message);
  const Result<Message> again = decode(std::as_bytes(std::span(once)));
  LOCKSTEP_CHECK(again.ok(), "{}", again.ok() ? "" : again.error().message);
  LOCKSTEP_CHECK(Encode(*again) == once, "a message changes on the way");
}

}  // namespace
}  // namespace lockstep::transport::control

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace control = lockstep::transport::control;
  const auto bytes = std::as_bytes(std::span(data, size));
  control::Check<lockstep::ToWorker>(bytes, control::DecodeToWorker);
  control::Check<lockstep::FromWorker>(bytes, control::DecodeFromWorker);
  control::FrameReader reader(1u << 16);
  // In two cuts, so that a frame is also met half there.
  for (const auto part : {bytes.first(size / 2), bytes.subspan(size / 2)}) {
    reader.Append(part);
    while (true) {
      const auto frame = reader.Next();
      if (!frame) return 0;
      if (!*frame) break;
      control::Check<lockstep::ToWorker>(**frame, control::DecodeToWorker);
      control::Check<lockstep::FromWorker>(**frame, control::DecodeFromWorker);
    }
  }
  return 0;
}
