#include "transport/inproc/inproc_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <memory>
#include <utility>

#include "base/check.h"

namespace lockstep::transport::inproc {
namespace {

constexpr std::size_t kMaxMessageBytes = 64u << 10;
constexpr std::size_t kMaxPieceBytes = 4u << 20;
// Fetches under way plus those given up and not yet answered: a multiple of the window.
constexpr std::size_t kWindowsOutstanding = 2;

}  // namespace

InprocTransport::InprocTransport(std::shared_ptr<Network> network, Options options)
    : network_(std::move(network)), options_(std::move(options)) {
  capabilities_.name = "inproc";
  capabilities_.version = "1.0";
  capabilities_.max_message_bytes = kMaxMessageBytes;
  capabilities_.max_piece_bytes = kMaxPieceBytes;
  capabilities_.fetch_window = options_.fetch_window;
}

void InprocTransport::CheckThread() const {
  LOCKSTEP_CHECK(thread_->IsCurrent(), "not on the data thread");
}

Status InprocTransport::Start(Handler* handler) {
  if (options_.job_key.empty()) return Error{ErrorCode::kInvalid, "a transport needs a job key"};
  LOCKSTEP_CHECK(handler != nullptr && handler_ == nullptr, "Start is called once");
  handler_ = handler;
  const auto promise = std::make_shared<std::promise<Status>>();
  auto entered = promise->get_future();
  thread_->Post([this, promise] {
    promise->set_value(options_.enter_data_thread ? options_.enter_data_thread() : Status());
  });
  thread_->Start();
  Status status = entered.get();
  if (!status) {
    thread_->Finish([] {});
    return status;
  }
  address_ = network_->Add({this, thread_, options_.self.worker});
  return {};
}

void InprocTransport::StopThread() {
  std::call_once(stopped_, [this] {
    network_->Remove(address_);
    thread_->Finish([this] { EndAll(); });
  });
}

void InprocTransport::EndAll() {
  stopping_ = true;
  const Error reason{ErrorCode::kClosed, "the transport was stopped"};
  while (!connections_.empty()) End(ConnectionPtr(connections_.begin()->second), reason, true);
  while (!failures_.empty()) TellFailures();
}

void InprocTransport::PostAt(Time when, std::function<void()> task) {
  CheckThread();
  thread_->PostAt(when, std::move(task));
}

InprocTransport::ConnectionPtr InprocTransport::Add(const std::shared_ptr<Wire>& wire, int side,
                                                    std::optional<MemberId> whom) {
  const auto role = whom ? Handshake::Role::kConnector : Handshake::Role::kAcceptor;
  auto connection = ConnectionPtr(
      new Connection{.wire = wire,
                     .side = side,
                     .handshake = Handshake(role, options_.self, options_.job_key, whom),
                     .whom = whom,
                     .peer = {},
                     .fetches = {},
                     .serves = {},
                     .deferred = {}});
  connections_.emplace(wire.get(), connection);
  thread_->PostAt(MonotonicNow() + options_.connect_timeout, [this, connection] {
    if (!connection->up) End(connection, Error{ErrorCode::kTimeout, "no answer in time"}, true);
  });
  return connection;
}

void InprocTransport::Connect(const MemberId& who, const std::string& address) {
  CheckThread();
  const auto node = network_->Find(address);
  if (stopping_ || !node) {
    FailConnectLater(who, stopping_ ? Error{ErrorCode::kClosed, "the transport was stopped"}
                                    : Error{ErrorCode::kUnavailable,
                                            fmt::format("nobody listens at '{}'", address)});
    return;
  }
  auto wire = std::make_shared<Wire>();
  wire->ends[0].transport = this;
  wire->ends[0].thread = thread_;
  wire->ends[0].worker = options_.self.worker;
  wire->ends[1].transport = node->transport;
  wire->ends[1].thread = node->thread;
  wire->ends[1].worker = node->worker;
  const auto connection = Add(wire, 0, who);
  Transmit(*connection, {.type = Frame::kHandshake, .bytes = connection->handshake.Begin()});
}

void InprocTransport::FailConnectLater(const MemberId& who, Error error) {
  error.message = fmt::format("connect to {}: {}", Describe(who), error.message);
  failures_.emplace_back(who, std::move(error));
  thread_->Post([this] { TellFailures(); });
}

void InprocTransport::TellFailures() {
  for (const auto& [who, error] : std::exchange(failures_, {})) {
    handler_->OnConnectFailed(who, error);
  }
}

InprocTransport::ConnectionPtr InprocTransport::FindPeer(PeerId peer) const {
  for (const auto& [wire, connection] : connections_) {
    if (connection->up && connection->peer == peer) return connection;
  }
  return nullptr;
}

void InprocTransport::Transmit(Connection& connection, Frame frame) {
  Wire::End& own = connection.own();
  Wire::End& other = connection.other();
  const auto faults = network_->FaultsOf(own.worker, other.worker);
  Time due = Time::min();
  // Frames that free memory, and the end of a connection, are not delayed.
  if (frame.type == Frame::kPiece) {
    due = own.bodies_due = std::max(own.bodies_due, MonotonicNow() + faults.body_delay);
  } else if (frame.type != Frame::kServed && frame.type != Frame::kHangup) {
    due = own.messages_due = std::max(own.messages_due, MonotonicNow() + faults.message_delay);
  }
  other.thread->PostAt(due, [receiver = other.transport, wire = connection.wire,
                             side = 1 - connection.side, frame = std::move(frame)]() mutable {
    receiver->Receive(wire, side, std::move(frame));
  });
}

void InprocTransport::Close(PeerId peer, std::string reason) {
  CheckThread();
  if (const auto connection = FindPeer(peer)) CloseLater(connection, reason);
}

void InprocTransport::CloseLater(const ConnectionPtr& connection, const std::string& reason) {
  if (connection->ending) return;
  connection->ending = true;
  thread_->Post([this, connection, reason] {
    End(connection, Error{ErrorCode::kClosed, reason}, true);
  });
}

void InprocTransport::DropConnectionsTo(WorkerId worker) {
  for (const auto& [wire, connection] : connections_) {
    if (connection->other().worker == worker) CloseLater(connection, "the connection was dropped");
  }
}

void InprocTransport::End(const ConnectionPtr& connection, const Error& reason, bool tell_other) {
  if (connections_.erase(connection->wire.get()) == 0) return;
  connection->ending = true;
  if (tell_other) {
    static const std::string kClosed = "the other end closed the connection";
    Transmit(*connection,
             {.type = Frame::kHangup, .reason = connection->up ? kClosed : reason.message});
  }
  if (!connection->up) {
    if (connection->whom) FailConnectLater(*connection->whom, reason);
    return;
  }
  while (!connection->fetches.empty()) {
    FinishFetch(*connection, connection->fetches.front().id, FetchStatus::kPeerDown);
  }
  for (const Serve& serve : std::exchange(connection->serves, {})) {
    auto state = Offer::kOffered;
    if (!serve.offer->state.compare_exchange_strong(state, Offer::kWithdrawn)) {
      // The receiver is copying right now, which it does without waiting for anything.
      serve.offer->state.wait(Offer::kCopying);
    }
    handler_->OnServed(connection->peer, serve.offer->cookie);
  }
  for (const Deferred& later : std::exchange(connection->deferred, {})) {
    handler_->OnServed(connection->peer, later.cookie);
  }
  handler_->OnPeerDown(connection->peer, reason);
}

Result<RegionId> InprocTransport::Register(MemoryKind kind, void* base, std::size_t bytes) {
  CheckThread();
  return regions_.Add(kind, base, bytes);
}

void InprocTransport::Unregister(RegionId region) {
  CheckThread();
  regions_.Remove(region);
}

bool InprocTransport::Send(PeerId peer, std::span<const std::byte> bytes) {
  CheckThread();
  LOCKSTEP_CHECK(bytes.size() <= kMaxMessageBytes, "a message of {} bytes", bytes.size());
  const auto connection = FindPeer(peer);
  if (!connection || connection->ending) return false;
  Wire::End& own = connection->own();
  if (network_->FaultsOf(own.worker, connection->other().worker).refuse_sends ||
      own.queued + bytes.size() > options_.send_queue_bytes) {
    return false;
  }
  own.queued += bytes.size();
  Transmit(*connection, {.type = Frame::kMessage, .bytes = {bytes.begin(), bytes.end()}});
  return true;
}

Result<FetchId> InprocTransport::Fetch(PeerId peer, const PieceName& name,
                                       const Slice& destination) {
  CheckThread();
  LOCKSTEP_CHECK(name.bytes == destination.bytes && name.bytes <= kMaxPieceBytes,
                 "a fetch of {} bytes into {}", name.bytes, destination.bytes);
  const auto connection = FindPeer(peer);
  if (!connection || connection->ending) return Error{ErrorCode::kClosed, "the peer is down"};
  if (connection->live_fetches >= options_.fetch_window ||
      connection->fetches.size() >= kWindowsOutstanding * options_.fetch_window) {
    return Error{ErrorCode::kUnavailable, "the window to the peer is full"};
  }
  last_fetch_ = last_fetch_.Next();
  ++connection->live_fetches;
  connection->fetches.push_back({.id = last_fetch_, .destination = regions_.Resolve(destination)});
  Transmit(*connection, {.type = Frame::kFetch, .fetch = last_fetch_, .name = name});
  return last_fetch_;
}

void InprocTransport::GiveUp(FetchId id) {
  CheckThread();
  for (const auto& [wire, connection] : connections_) {
    const auto fetch = std::ranges::find(connection->fetches, id, &PendingFetch::id);
    if (fetch == connection->fetches.end() || fetch->given_up || connection->ending) continue;
    fetch->given_up = true;
    fetch->owes_given_up = true;
    --connection->live_fetches;
    Transmit(*connection, {.type = Frame::kCancel, .fetch = id});
    thread_->Post([this, held = connection, id] {
      const auto told = std::ranges::find(held->fetches, id, &PendingFetch::id);
      if (held->ending || told == held->fetches.end() || !told->owes_given_up) return;
      told->owes_given_up = false;
      handler_->OnFetchDone(id, FetchStatus::kGivenUp);
    });
    return;
  }
}

}  // namespace lockstep::transport::inproc
