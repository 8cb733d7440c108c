// The handling of the frames that an in-process transport receives.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "transport/inproc/inproc_transport.h"

namespace lockstep::transport::inproc {

void InprocTransport::Receive(const std::shared_ptr<Wire>& wire, int side, Frame frame) {
  if (frame.type == Frame::kMessage) wire->ends[1 - side].queued -= frame.bytes.size();
  auto found = connections_.find(wire.get());
  ConnectionPtr connection = found == connections_.end() ? nullptr : found->second;
  if (!connection) {
    // It is the first frame of a new connection, or a late one of a connection that has ended here.
    const bool first = side == 1 && frame.type == Frame::kHandshake && !wire->accepted;
    if (!first || stopping_) return;
    wire->accepted = true;
    connection = Add(wire, side, std::nullopt);
  }
  if (frame.type == Frame::kHangup) {
    End(connection, Error{connection->up ? ErrorCode::kClosed : ErrorCode::kRefused, frame.reason},
        false);
  } else if (connection->ending) {
    return;
  } else if (frame.type == Frame::kHandshake) {
    ReceiveGreeting(connection, frame);
  } else {
    ReceiveFrame(*connection, frame);
  }
}

void InprocTransport::ReceiveGreeting(const ConnectionPtr& connection, const Frame& frame) {
  const auto answer = connection->handshake.Consume(frame.bytes);
  if (!answer) {
    End(connection, answer.error(), true);
    return;
  }
  if (!answer->empty()) Transmit(*connection, {.type = Frame::kHandshake, .bytes = *answer});
  if (!connection->handshake.done()) return;
  connection->up = true;
  last_peer_ = last_peer_.Next();
  connection->peer = last_peer_;
  handler_->OnPeerUp(connection->peer, connection->handshake.peer(), {.text = "inproc"});
}

void InprocTransport::ReceiveFrame(Connection& connection, Frame& frame) {
  LOCKSTEP_CHECK(connection.up, "a frame before the handshake is over");
  switch (frame.type) {
    case Frame::kMessage:
      handler_->OnMessage(connection.peer, frame.bytes);
      return;
    case Frame::kFetch:
      ReceiveFetch(connection, frame);
      return;
    case Frame::kCancel:
      ReceiveCancel(connection, frame);
      return;
    case Frame::kPiece:
      ReceivePiece(connection, frame);
      return;
    case Frame::kGone:
      FinishFetch(connection, frame.fetch, FetchStatus::kGone);
      return;
    case Frame::kServed:
      ReceiveServed(connection, frame);
      return;
    case Frame::kHandshake:
    case Frame::kHangup:
      return;
  }
}

void InprocTransport::ReceiveFetch(Connection& connection, const Frame& frame) {
  const ServeAnswer answer = handler_->OnFetch(connection.peer, frame.name);
  if (answer.later) {
    connection.deferred.push_back({frame.fetch, answer.cookie, frame.name.bytes});
    return;
  }
  if (!answer.have) {
    Transmit(connection, {.type = Frame::kGone, .fetch = frame.fetch});
    return;
  }
  LOCKSTEP_CHECK(answer.slice.bytes == frame.name.bytes, "a piece of {} bytes served with {}",
                 frame.name.bytes, answer.slice.bytes);
  ServeSlice(connection, frame.fetch, answer.slice, answer.cookie);
}

void InprocTransport::ServeSlice(Connection& connection, FetchId fetch, const Slice& slice,
                                 std::uint64_t cookie) {
  auto offer = std::make_shared<Offer>();
  offer->body = regions_.Resolve(slice);
  offer->cookie = cookie;
  connection.serves.push_back({fetch, offer});
  Transmit(connection, {.type = Frame::kPiece, .fetch = fetch, .offer = offer});
}

void InprocTransport::Provide(PeerId peer, std::uint64_t cookie, const Slice& slice) {
  CheckThread();
  const auto connection = FindPeer(peer);
  if (!connection) return;
  const auto found = std::ranges::find(connection->deferred, cookie, &Deferred::cookie);
  if (found == connection->deferred.end()) return;
  LOCKSTEP_CHECK(slice.bytes == found->bytes, "a piece of {} bytes served with {}", found->bytes,
                 slice.bytes);
  const FetchId fetch = found->fetch;
  connection->deferred.erase(found);
  ServeSlice(*connection, fetch, slice, cookie);
}

void InprocTransport::ReceiveCancel(Connection& connection, const Frame& frame) {
  const auto later = std::ranges::find(connection.deferred, frame.fetch, &Deferred::fetch);
  if (later != connection.deferred.end()) {
    const std::uint64_t cookie = later->cookie;
    connection.deferred.erase(later);
    Transmit(connection, {.type = Frame::kGone, .fetch = frame.fetch});
    handler_->OnServed(connection.peer, cookie);
    return;
  }
  const auto serve = std::ranges::find(connection.serves, frame.fetch, &Serve::fetch);
  if (serve == connection.serves.end()) return;
  const auto offer = serve->offer;
  auto state = Offer::kOffered;
  if (!offer->state.compare_exchange_strong(state, Offer::kWithdrawn)) return;
  connection.serves.erase(serve);
  Transmit(connection, {.type = Frame::kGone, .fetch = frame.fetch});
  handler_->OnServed(connection.peer, offer->cookie);
}

void InprocTransport::ReceivePiece(Connection& connection, const Frame& frame) {
  auto state = Offer::kOffered;
  // The offer was withdrawn: a "gone" or the end of the connection is on its way.
  if (!frame.offer->state.compare_exchange_strong(state, Offer::kCopying)) return;
  const auto fetch = std::ranges::find(connection.fetches, frame.fetch, &PendingFetch::id);
  LOCKSTEP_CHECK(fetch != connection.fetches.end(), "a piece that was not asked for");
  if (!fetch->given_up && !frame.offer->body.empty()) {
    std::memcpy(fetch->destination.data(), frame.offer->body.data(), frame.offer->body.size());
  }
  frame.offer->state = Offer::kDone;
  frame.offer->state.notify_all();
  Transmit(connection, {.type = Frame::kServed, .fetch = frame.fetch});
  FinishFetch(connection, frame.fetch, FetchStatus::kOk);
}

void InprocTransport::ReceiveServed(Connection& connection, const Frame& frame) {
  const auto serve = std::ranges::find(connection.serves, frame.fetch, &Serve::fetch);
  LOCKSTEP_CHECK(serve != connection.serves.end(), "thanks for a piece that was not served");
  const std::uint64_t cookie = serve->offer->cookie;
  connection.serves.erase(serve);
  handler_->OnServed(connection.peer, cookie);
}

void InprocTransport::FinishFetch(Connection& connection, FetchId id, FetchStatus status) {
  const auto fetch = std::ranges::find(connection.fetches, id, &PendingFetch::id);
  LOCKSTEP_CHECK(fetch != connection.fetches.end(), "an answer to no question");
  const PendingFetch done = *fetch;
  connection.fetches.erase(fetch);
  if (!done.given_up) {
    --connection.live_fetches;
    handler_->OnFetchDone(id, status);
  } else if (done.owes_given_up) {
    handler_->OnFetchDone(id, FetchStatus::kGivenUp);
  }
}

}  // namespace lockstep::transport::inproc
