// A connection's handling of the frames that arrive.
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>

#include "base/check.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/group.h"

namespace lockstep::transport::tcp {
namespace {

Error Malformed(const std::string& what) {
  return Error{ErrorCode::kInvalid, "protocol error of the other end: " + what};
}

}  // namespace

bool Connection::HandleFrames() {
  while (alive()) {
    const auto event = inbox_.Next();
    if (!event) {
      End(Malformed(event.error().message));
      return false;
    }
    if (*event == Inbox::Event::kNone) return true;
    if (*event == Inbox::Event::kPieceDone) {
      const auto fetch = Find(inbox_.header().id);
      LOCKSTEP_CHECK(fetch != fetches_.end());
      if (fetch->begun == fetch->destination.size()) FinishFetch(fetch, FetchStatus::kOk);
      continue;
    }
    const Status handled = state_ == State::kGreeting  ? HandleGreeting()
                           : state_ == State::kForming ? HandleForming()
                                                       : HandleFrame();
    if (!handled) {
      End(handled.error());
      return false;
    }
  }
  return false;
}

Status Connection::HandleGreeting() {
  if (inbox_.header().type != FrameType::kHandshake) {
    return Malformed("it does not begin with a handshake");
  }
  auto answer = handshake_.Consume(inbox_.body());
  if (!answer) {
    if (!handshake_.farewell().empty()) {
      outbox_.PushSmall(FrameType::kHandshake, 0, handshake_.farewell());
      SendFarewell();
    }
    return answer.error();
  }
  if (!answer->empty()) outbox_.PushSmall(FrameType::kHandshake, 0, *answer);
  if (handshake_.done()) {
    // With several connections, the acceptor answers the connector's settings.
    if (whom_ || place_.connections == 1) PushSettings();
    inbox_.Grow();
    state_ = State::kForming;
    if (const Status taken = owner_.OnProven(*this); !taken) return Refuse(taken.error().message);
  }
  ScheduleFlush();
  return {};
}

void Connection::PushSettings() {
  const auto body = EncodeConnectionPlace(place_);
  outbox_.PushSmall(FrameType::kSettings, owner_.options().fetch_window,
                    std::span(body).first(place_.connections == 1 ? 0 : body.size()));
}

Status Connection::HandleSettings() {
  const auto place = DecodeConnectionPlace(inbox_.body());
  if (!place) return Malformed(place.error().message);
  if (place->connections != place_.connections) {
    return Refuse(fmt::format("{} has exchange.connections = {}, the other end {}",
                              Describe(owner_.options().self), place_.connections,
                              place->connections));
  }
  peer_window_ = inbox_.header().id;
  if (place_.connections == 1) return {};
  if (const Status taken = owner_.OnPlace(*this, *place); !taken) {
    return Refuse(taken.error().message);
  }
  if (whom_) return {};
  PushSettings();
  ScheduleFlush();
  awaits_begin_ = true;
  return {};
}

void Connection::Settle(const ConnectionPlace& place) {
  place_ = place;
  settled_ = true;
}

// Handles one of several connections, over which only a settings frame and a begin frame come.
Status Connection::HandleForming() {
  const FrameType type = inbox_.header().type;
  if (type == FrameType::kSettings && peer_window_ == 0) return HandleSettings();
  if (type == FrameType::kBegin && awaits_begin_) {
    awaits_begin_ = false;
    if (const Status fits = owner_.OnBegin(*this); !fits) return Malformed(fits.error().message);
    return {};
  }
  if (type == FrameType::kHandshake && peer_window_ == 0) {
    if (auto refusal = Handshake::ReadRefusal(inbox_.body())) return *std::move(refusal);
  }
  return Malformed("its connections are not all there yet");
}

Error Connection::Refuse(const std::string& reason) {
  outbox_.PushSmall(FrameType::kHandshake, 0, Handshake::Refusal(reason));
  SendFarewell();
  return Error{ErrorCode::kRefused, reason};
}

void Connection::SendFarewell() {
  std::array<iovec, Outbox::kMaxVectors> vectors{};
  const std::size_t count = outbox_.Gather(vectors);
  // A courtesy: whether it arrives changes nothing here.
  (void)Write(std::span(vectors).first(count)).ok();
}

Status Connection::HandleFrame() {
  const FrameHeader& header = inbox_.header();
  if (peer_window_ == 0 && header.type == FrameType::kHandshake) {
    if (auto refusal = Handshake::ReadRefusal(inbox_.body())) return *std::move(refusal);
  }
  if ((header.type == FrameType::kSettings) != (peer_window_ == 0)) {
    return Malformed("settings come first and once");
  }
  if ((header.type == FrameType::kBegin) != awaits_begin_) {
    return Malformed("each of several connections begins once");
  }
  switch (header.type) {
    case FrameType::kHandshake:
      return Malformed("a second handshake");
    case FrameType::kSettings:
      return HandleSettings();
    case FrameType::kBegin:
      awaits_begin_ = false;
      return {};
    case FrameType::kMessage:
      owner_.handler().OnMessage(peer_, inbox_.body());
      return {};
    case FrameType::kFetch:
      return HandleFetch();
    case FrameType::kCancel:
      HandleCancel();
      return {};
    case FrameType::kPiece:
      return HandlePieceHeader();
    case FrameType::kGone:
      return HandleGone();
  }
  return Malformed("an unknown frame");
}

Status Connection::HandleFetch() {
  if (group_->asked() >= kWindowsOutstanding * peer_window_) {
    return Malformed("more fetches than its window allows");
  }
  const auto name = DecodePieceName(inbox_.body().first<kPieceNameBytes>());
  if (!name) return Malformed(name.error().message);
  const std::uint64_t id = inbox_.header().id;
  const ServeAnswer answer = owner_.handler().OnFetch(peer_, *name);
  if (answer.later) {
    deferred_.push_back({.id = id, .cookie = answer.cookie, .bytes = name->bytes});
    return {};
  }
  std::span<const std::byte> body;
  if (answer.have) {
    LOCKSTEP_CHECK(answer.slice.bytes == name->bytes, "a piece of {} bytes served with {}",
                   name->bytes, answer.slice.bytes);
    body = owner_.regions().Resolve(answer.slice);
  }
  lone_answer_ = outbox_.answers() == 0 && live_fetches_ <= 1;
  outbox_.PushAnswer({.id = id, .have = answer.have, .body = body, .cookie = answer.cookie});
  ScheduleFlush();
  return {};
}

bool Connection::Provide(std::uint64_t cookie, std::span<const std::byte> body) {
  const auto found = std::ranges::find(deferred_, cookie, &Deferred::cookie);
  if (found == deferred_.end()) return false;
  LOCKSTEP_CHECK(body.size() == found->bytes, "a piece of {} bytes served with {}", found->bytes,
                 body.size());
  outbox_.PushAnswer({.id = found->id, .have = true, .body = body, .cookie = cookie});
  deferred_.erase(found);
  if (state_ == State::kUp) ScheduleFlush();
  return true;
}

void Connection::HandleCancel() {
  const auto later = std::ranges::find(deferred_, inbox_.header().id, &Deferred::id);
  if (later != deferred_.end()) {
    const Deferred cancelled = *later;
    deferred_.erase(later);
    outbox_.PushAnswer({.id = cancelled.id});
    ScheduleFlush();
    owner_.handler().OnServed(peer_, cancelled.cookie);
    return;
  }
  if (const auto cookie = outbox_.Cancel(inbox_.header().id)) {
    owner_.handler().OnServed(peer_, *cookie);
  }
}

Status Connection::HandlePieceHeader() {
  const FrameHeader& header = inbox_.header();
  const auto fetch = Find(header.id);
  if (fetch == fetches_.end()) return Malformed("a piece that was not asked for");
  const std::size_t whole = fetch->destination.size();
  if (header.bytes > whole - fetch->begun || (header.bytes == 0 && whole > 0)) {
    return Malformed(fmt::format("{} bytes behind {} of a piece where {} were asked for",
                                 header.bytes, fetch->begun, whole));
  }
  const auto into = fetch->destination.subspan(fetch->begun, header.bytes);
  fetch->begun += header.bytes;
  if (fetch->given_up) {
    inbox_.ReadBodyAway();
  } else {
    inbox_.ReadBodyInto(into);
  }
  return {};
}

Status Connection::HandleGone() {
  const auto fetch = Find(inbox_.header().id);
  if (fetch == fetches_.end()) return Malformed("an answer to no question");
  FinishFetch(fetch, FetchStatus::kGone);
  return {};
}

std::vector<Connection::PendingFetch>::iterator Connection::Find(std::uint64_t id) {
  return std::ranges::find(fetches_, FetchId(id), &PendingFetch::id);
}

void Connection::FinishFetch(std::vector<PendingFetch>::iterator fetch, FetchStatus status) {
  LOCKSTEP_CHECK(fetch != fetches_.end());
  const PendingFetch done = *fetch;
  fetches_.erase(fetch);
  bytes_awaited_ -= done.destination.size();
  if (!done.given_up) {
    --live_fetches_;
    owner_.handler().OnFetchDone(done.id, status);
  } else if (done.owes_given_up) {
    owner_.handler().OnFetchDone(done.id, FetchStatus::kGivenUp);
  }
}

void Connection::TellGivenUp(FetchId id) {
  const auto fetch = Find(id.value);
  if (fetch == fetches_.end() || !fetch->owes_given_up) return;
  fetch->owes_given_up = false;
  owner_.handler().OnFetchDone(id, FetchStatus::kGivenUp);
}

}  // namespace lockstep::transport::tcp
