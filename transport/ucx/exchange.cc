// The engine's part that moves bytes: messages, fetches and serves.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "transport/ucx/engine.h"
#include "transport/ucx/library.h"

namespace lockstep::transport::ucx {
namespace {

// The least that a message takes of its queue, so that empty ones are bounded too.
constexpr std::size_t kLeastCharge = 64;
// The most answers to one peer that UCX has not finished. A well-behaved peer stays below by its
// window (kMaxFetchWindow).
constexpr std::size_t kMaxReplies = 4096;
// The most fetches that the peer has not answered, abandoned ones included, in multiples of the
// window. A stopped peer must not gather an endless list of requests that are given up again and
// again.
constexpr std::size_t kUnansweredPerWindow = 4;

}  // namespace

bool Engine::SendFrame(Connection& connection, Operation::Kind kind, Frame frame,
                       const HeaderBytes& header, std::span<const std::byte> body,
                       std::size_t charge) {
  Operation* operation = operations_->Acquire(kind, connection.id);
  operation->header = header;
  operation->body.assign(body.begin(), body.end());
  operation->charged_bytes = charge;
  const ucs_status_t status = connection.endpoint->SendEager(frame, operation);
  if (status == UCS_INPROGRESS) {
    ++connection.operations;
    ++operations_open_;
    connection.queued_bytes += charge;
    if (kind == Operation::Kind::kReply) ++connection.replies;
    if (kind == Operation::Kind::kPing) connection.pinging = true;
    return true;
  }
  operations_->Release(operation);
  if (status != UCS_OK) OnEndpointError(connection.id, status);
  return status == UCS_OK;
}

bool Engine::Send(PeerId peer, std::span<const std::byte> bytes) {
  Connection* connection = Find(peer);
  if (connection == nullptr || connection->state != Connection::State::kUp) return false;
  const std::size_t charge = std::max(bytes.size(), kLeastCharge);
  if (bytes.size() > kMaxMessageBytes ||
      connection->queued_bytes + charge > options_.send_queue_bytes) {
    return false;
  }
  if (!SendFrame(*connection, Operation::Kind::kSend, Frame::kMessage,
                 EncodeMessage(connection->remote, connection->next_sent), bytes, charge)) {
    return false;
  }
  ++connection->next_sent;
  return true;
}

void Engine::OnMessage(Connection& connection, const ActiveMessage& message) {
  const auto sequence = DecodeMessage(message.header);
  if (!sequence || message.bytes > kMaxMessageBytes) {
    FailMalformed(connection, "a message is malformed");
    return;
  }
  if (*sequence != connection.next_received) {
    // Eager fragments on several lanes overtake each other.
    FailMalformed(connection, "messages came out of order (UCX_MAX_EAGER_LANES must be 1)");
    return;
  }
  ++connection.next_received;
  handler_->OnMessage(connection.id, {static_cast<const std::byte*>(message.data), message.bytes});
}

Result<FetchId> Engine::Fetch(PeerId peer, const PieceName& name, const Slice& destination) {
  const Error down{ErrorCode::kClosed, "the peer is down"};
  Connection* connection = Find(peer);
  if (connection == nullptr || connection->state != Connection::State::kUp) return down;
  if (destination.bytes != name.bytes || name.bytes > kMaxPieceBytes) {
    return Error{ErrorCode::kInvalid,
                 fmt::format("a piece of {} bytes does not fit its destination of {} bytes or the "
                             "limit of {}",
                             name.bytes, destination.bytes, kMaxPieceBytes)};
  }
  const auto memory = regions_.Find(destination);
  if (!memory) return Error{ErrorCode::kInvalid, "the destination is not inside its region"};
  if (connection->fetches >= options_.fetch_window ||
      connection->fetches + connection->abandoned.size() >=
          kUnansweredPerWindow * options_.fetch_window) {
    return Error{ErrorCode::kUnavailable, "the window of fetches to this peer is full"};
  }
  const FetchId id(next_fetch_++);
  if (!SendFrame(*connection, Operation::Kind::kSend, Frame::kFetch,
                 EncodeFetch(connection->remote, {id.value, name}), {}, 0)) {
    return down;
  }
  fetches_.emplace(id, PendingFetch{peer, *memory, destination.region, name.bytes});
  ++connection->fetches;
  return id;
}

void Engine::GiveUp(FetchId fetch) {
  const auto found = fetches_.find(fetch);
  if (found == fetches_.end()) return;
  PendingFetch& pending = found->second;
  if (pending.receiving) {
    // UCX cannot be told to stop, and writes to the destination until the piece is whole.
    pending.given_up = true;
    return;
  }
  Connection* connection = Find(pending.peer);
  --connection->fetches;
  connection->abandoned.insert(fetch);
  fetches_.erase(found);
  results_.emplace_back(fetch, FetchStatus::kGivenUp);
}

void Engine::EndFetch(FetchId id, FetchStatus status) {
  const auto found = fetches_.find(id);
  --Find(found->second.peer)->fetches;
  const bool given_up = found->second.given_up;
  fetches_.erase(found);
  handler_->OnFetchDone(id, given_up ? FetchStatus::kGivenUp : status);
}

void Engine::OnFetch(Connection& connection, const ActiveMessage& message) {
  const auto fetch = DecodeFetch(message.header);
  if (!fetch || message.bytes != 0 || fetch->name.bytes > kMaxPieceBytes) {
    FailMalformed(connection, "a fetch is malformed");
    return;
  }
  if (connection.replies + connection.deferred.size() >= kMaxReplies) {
    FailMalformed(connection, "it asks for more pieces than it takes");
    return;
  }
  const ServeAnswer answer = handler_->OnFetch(connection.id, fetch->name);
  if (answer.later) {
    connection.deferred.push_back({fetch->fetch, answer.cookie, fetch->name.bytes});
  } else if (answer.have) {
    Serve(connection, {fetch->fetch, PieceStatus::kOk, fetch->name.bytes}, answer);
  } else if (connection.state == Connection::State::kUp) {
    SendFrame(connection, Operation::Kind::kReply, Frame::kPiece,
              EncodePiece(connection.remote, {fetch->fetch, PieceStatus::kGone, 0}), {}, 0);
  }
}

void Engine::Provide(PeerId peer, std::uint64_t cookie, const Slice& slice) {
  Connection* connection = Find(peer);
  if (connection == nullptr) return;
  const auto found = std::ranges::find(connection->deferred, cookie, &Connection::Deferred::cookie);
  if (found == connection->deferred.end()) return;
  const PieceHeader piece{found->fetch, PieceStatus::kOk, found->bytes};
  connection->deferred.erase(found);
  Serve(*connection, piece, {.have = true, .slice = slice, .cookie = cookie});
}

void Engine::Serve(Connection& connection, const PieceHeader& piece, const ServeAnswer& answer) {
  LOCKSTEP_CHECK(answer.slice.bytes == piece.bytes, "{} bytes were asked for, {} are served",
                 piece.bytes, answer.slice.bytes);
  if (connection.state != Connection::State::kUp) {  // the handler has just closed it
    handler_->OnServed(connection.id, answer.cookie);
    return;
  }
  if (piece.bytes == 0) {
    SendFrame(connection, Operation::Kind::kReply, Frame::kPiece,
              EncodePiece(connection.remote, piece), {}, 0);
    handler_->OnServed(connection.id, answer.cookie);
    return;
  }
  const auto memory = regions_.Find(answer.slice);
  LOCKSTEP_CHECK(memory.has_value(), "a served slice is not inside its region");
  Operation* operation = operations_->Acquire(Operation::Kind::kServe, connection.id);
  operation->header = EncodePiece(connection.remote, piece);
  operation->cookie = answer.cookie;
  const ucs_status_t status = connection.endpoint->SendRendezvous(
      Frame::kPiece, operation, memory->data, piece.bytes, memory->kind);
  if (status == UCS_INPROGRESS) {
    ++connection.operations;
    ++connection.replies;
    ++operations_open_;
    return;
  }
  operations_->Release(operation);
  if (status != UCS_OK) OnEndpointError(connection.id, status);
  handler_->OnServed(connection.id, answer.cookie);
}

bool Engine::OnPiece(Connection& connection, const ActiveMessage& message) {
  const auto piece = DecodePiece(message.header);
  if (!piece || piece->bytes != message.bytes) {
    FailMalformed(connection, "a piece is malformed");
    return false;
  }
  const FetchId id(piece->fetch);
  if (connection.abandoned.erase(id) != 0) return false;
  const auto found = fetches_.find(id);
  if (found == fetches_.end() || found->second.peer != connection.id || found->second.receiving) {
    FailMalformed(connection, "a piece came that was not asked for");
    return false;
  }
  if (piece->status == PieceStatus::kGone) {
    EndFetch(id, FetchStatus::kGone);
    return true;
  }
  if (piece->bytes != found->second.bytes) {
    FailMalformed(connection, "a piece has another length than asked for");
    return false;
  }
  if (piece->bytes == 0) {
    EndFetch(id, FetchStatus::kOk);
    return true;
  }
  LOCKSTEP_CHECK(message.receivable, "UCX brought a piece that cannot be received");
  return Receive(connection, id, found->second, message.data);
}

bool Engine::Receive(Connection& connection, FetchId id, PendingFetch& fetch, void* data) {
  Operation* operation = operations_->Acquire(Operation::Kind::kReceive, connection.id);
  operation->fetch = id;
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  params.cb.recv_am = &OperationPool::OnReceiveEnded;
  params.user_data = operation;
  params.memory_type = fetch.destination.kind;
  void* request =
      ucp_am_recv_data_nbx(worker_->get(), data, fetch.destination.data, fetch.bytes, &params);
  if (request != nullptr && !UCS_PTR_IS_ERR(request)) {
    fetch.receiving = true;
    ++connection.operations;
    ++operations_open_;
    return true;
  }
  operations_->Release(operation);
  if (request == nullptr) {  // it was eager, and is copied already
    EndFetch(id, FetchStatus::kOk);
    return true;
  }
  OnEndpointError(connection.id, UCS_PTR_STATUS(request));
  EndFetch(id, FetchStatus::kPeerDown);
  return true;
}

void Engine::EndOperation(Operation* operation) {
  Connection& connection = *Find(operation->peer);
  --connection.operations;
  --operations_open_;
  const Operation::Kind kind = operation->kind;
  const ucs_status_t status = operation->status;
  const std::uint64_t cookie = operation->cookie;
  const FetchId fetch = operation->fetch;
  connection.queued_bytes -= operation->charged_bytes;
  operations_->Release(operation);
  if (connection.kept_until && wiring_ == UcxWiring::kAddresses) KeepWhileItTakes(connection);

  const bool replied = kind == Operation::Kind::kServe || kind == Operation::Kind::kReply;
  if (replied) --connection.replies;
  if (kind == Operation::Kind::kPing) connection.pinging = false;
  // "Canceled" means that the receiver refuses a piece; after any other error the connection is not
  // to be trusted any more.
  const bool refused = kind == Operation::Kind::kServe && status == UCS_ERR_CANCELED;
  if (status != UCS_OK && !refused) OnEndpointError(connection.id, status);
  if (kind == Operation::Kind::kServe) handler_->OnServed(connection.id, cookie);
  if (kind == Operation::Kind::kReceive) {
    EndFetch(fetch, status == UCS_OK ? FetchStatus::kOk : FetchStatus::kPeerDown);
  }
}

}  // namespace lockstep::transport::ucx
