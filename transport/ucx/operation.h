// The data of a send or a receive under way: header and body stay at their address until UCX is
// done.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "transport/transport.h"
#include "transport/ucx/wire.h"

namespace lockstep::transport::ucx {

struct Operation {
  enum class Kind : std::uint8_t { kSend, kReply, kServe, kReceive, kPing };

  Kind kind = Kind::kSend;
  PeerId peer;
  HeaderBytes header;
  std::vector<std::byte> body;    // kSend, kReply: a copy of the bytes to send
  std::size_t charged_bytes = 0;  // kSend: its share of the peer's send queue
  std::uint64_t cookie = 0;       // kServe
  FetchId fetch;                  // kReceive
  ucs_status_t status = UCS_INPROGRESS;

 private:
  friend class OperationPool;
  std::weak_ptr<class OperationPool> pool;
};

// Owns all operations and collects those that UCX has ended. The users bound their number: send
// queues, fetch windows and the limit on serves. The worker holds a reference, so that no operation
// dies while UCX may still name it.
class OperationPool : public std::enable_shared_from_this<OperationPool> {
 public:
  Operation* Acquire(Operation::Kind kind, PeerId peer);
  // Do not call it while UCX works on it.
  void Release(Operation* operation);

  // The operations that ended since the last call, in the order in which UCX ended them. It swaps,
  // so that no memory is allocated per turn.
  void TakeEnded(std::vector<Operation*>& ended);

  // UCX's completion callbacks; user_data is the operation. They only take note: a handler must not
  // re-enter UCX during the purge of a dead endpoint.
  static void OnSendEnded(void* request, ucs_status_t status, void* user_data);
  static void OnReceiveEnded(void* request, ucs_status_t status, std::size_t length,
                             void* user_data);

 private:
  static void Ended(void* request, ucs_status_t status, Operation* operation);

  std::deque<Operation> all_;
  std::vector<Operation*> free_;
  std::vector<Operation*> ended_;
};

}  // namespace lockstep::transport::ucx
