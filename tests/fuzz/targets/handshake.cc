// The handshake of the data plane: alone with a stranger's messages, and between two members while
// somebody on the way changes what he likes.
#include "transport/handshake.h"

#include <optional>

#include "base/check.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {
namespace {

using transport::Handshake;

const MemberId kConnector{WorkerId(1), Incarnation(1)};
const MemberId kAcceptor{WorkerId(2), Incarnation(1)};

std::vector<std::byte> Key() { return std::vector<std::byte>(32, std::byte{7}); }

// Messages as chunks, to one end of either role. True: the first was taken.
bool Alone(bool connects, bool expects, Input input) {
  Handshake end(connects ? Handshake::Role::kConnector : Handshake::Role::kAcceptor,
                connects ? kConnector : kAcceptor, Key(),
                expects ? std::optional(connects ? kAcceptor : kConnector) : std::nullopt);
  end.Begin();
  for (bool first = true; !input.empty(); first = false) {
    const Bytes message = input.TakeChunk();
    const auto answer = end.Consume(std::as_bytes(message));
    LOCKSTEP_CHECK(!end.done(), "a stranger is let in");
    if (!answer) {
      LOCKSTEP_CHECK(OneLine(answer.error().message), "{}", answer.error().message);
      return !first;
    }
    LOCKSTEP_CHECK(answer->size() <= Handshake::kMaxMessageBytes);
  }
  return true;
}

// For each message a number of changes, each a place and what is xor-ed there.
bool Between(Input input) {
  Handshake connector(Handshake::Role::kConnector, kConnector, Key(), kAcceptor);
  Handshake acceptor(Handshake::Role::kAcceptor, kAcceptor, Key(), std::nullopt);
  std::vector<std::byte> message = connector.Begin();
  bool changed = false;
  for (int turn = 0; !message.empty(); ++turn) {
    for (int changes = input.Byte() % 4; changes > 0; --changes) {
      const std::size_t at = input.Byte() % message.size();
      const std::byte by{input.Byte()};
      message[at] ^= by;
      changed = changed || by != std::byte{0};
    }
    // An even number of changes at one place may cancel out; who is done then has lost nothing.
    Handshake& to = turn % 2 == 0 ? acceptor : connector;
    const auto answer = to.Consume(message);
    if (!answer) {
      LOCKSTEP_CHECK(OneLine(answer.error().message), "{}", answer.error().message);
      return changed;
    }
    message = *answer;
  }
  if (connector.done()) LOCKSTEP_CHECK(connector.peer() == kAcceptor);
  if (acceptor.done()) LOCKSTEP_CHECK(acceptor.peer() == kConnector);
  LOCKSTEP_CHECK(changed || (connector.done() && acceptor.done()), "honest members do not meet");
  return true;
}

}  // namespace

bool Run(Bytes bytes) {
  Input input(bytes);
  const std::uint8_t how = input.Byte();
  if ((how & 1) != 0) return Between(input);
  return Alone((how & 2) != 0, (how & 4) != 0, input);
}

std::vector<std::string> Seeds() {
  Handshake connector(Handshake::Role::kConnector, kConnector, Key(), std::nullopt);
  const auto hello = connector.Begin();
  const std::string text(reinterpret_cast<const char*>(hello.data()), hello.size());
  std::string alone(1, '\0');
  alone += Chunk(text);
  return {alone, std::string(1, '\1'), std::string("\1\0\1\5\1\0\0", 7)};
}

}  // namespace lockstep::fuzz
