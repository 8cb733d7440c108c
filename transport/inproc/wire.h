// A connection between two in-process transports: the state that both ends share, and the frames.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/time.h"
#include "transport/inproc/data_thread.h"
#include "transport/transport.h"

namespace lockstep::transport::inproc {

class InprocTransport;

// A piece on its way. The receiver copies it on its own thread, straight out of the sender's
// region. The end that moves `state` away from kOffered decides whether the copy still happens.
struct Offer {
  enum State : std::uint8_t { kOffered, kCopying, kDone, kWithdrawn };
  std::span<const std::byte> body;
  std::uint64_t cookie = 0;
  std::atomic<State> state = kOffered;
};

struct Frame {
  enum Type : std::uint8_t {
    kHandshake,
    kMessage,
    kFetch,
    kCancel,
    kPiece,
    kGone,
    kServed,
    kHangup
  };
  Type type = kMessage;
  FetchId fetch{};
  PieceName name{};
  std::vector<std::byte> bytes{};
  std::shared_ptr<Offer> offer{};
  std::string reason{};
};

struct Wire {
  struct End {
    // Use it only on `thread`, which drops tasks that are posted after the transport has stopped.
    InprocTransport* transport = nullptr;
    std::shared_ptr<DataThread> thread;
    WorkerId worker;
    // Bytes of small messages that this end has sent and the other has not yet handled.
    std::atomic<std::size_t> queued = 0;
    // The arrival of this end's last message; later ones do not overtake it.
    Time messages_due;
    Time bodies_due;
  };
  End ends[2];            // connector, acceptor
  bool accepted = false;  // belongs to the acceptor's thread
};

}  // namespace lockstep::transport::inproc
