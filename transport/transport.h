// The contract of a data-plane transport: moves small messages and bulk pieces between the workers
// of a job.
//
// Threads. A transport has one thread, the data thread: its own, or for tcp one that others use as
// well (Options::network). Every callback of Handler runs on it, and
// every call of Transport must be made on it, except Post, Start and Stop. A callback may call back
// into the transport.
//
// Small messages are eager and ordered per peer. Bulk moves only on request of the receiver: Fetch
// names a piece, the peer's Handler::OnFetch names its place, and the bytes land in the receiver's
// region. No bulk data moves without a request; a receiver refuses a late gradient by not asking
// for it.
//
// Completion. "Sent" never means "accepted", so there is no completion of Send. A fetch completes
// once, with the bytes in place or with the reason why not. A served piece stays untouched until
// OnServed: a send cannot be called back (see Handler::OnServed).
//
// Failures. A peer's death is an event (OnPeerDown), never an abort. After OnPeerDown(p) every
// fetch from p has been completed with kPeerDown, every piece served to p has had its OnServed, and
// no callback names p again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/exchange_words.h"
#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"

namespace lockstep::transport {

class NetworkThread;

enum class MemoryKind : std::uint8_t { kHost, kPinned, kCuda };

// One connection to one incarnation of a worker; a transport never reuses the number.
using PeerId = Id<struct PeerIdTag, std::uint64_t>;
using FetchId = Id<struct FetchIdTag, std::uint64_t>;
using RegionId = Id<struct RegionIdTag, std::uint32_t>;

// A slice of a registered region.
struct Slice {
  RegionId region;
  std::uint64_t offset = 0;  // bytes
  std::uint64_t bytes = 0;
};

// The answer of OnFetch.
struct ServeAnswer {
  bool have = false;  // false: the fetch ends with kGone
  Slice slice;        // slice.bytes == name.bytes
  // Given back in OnServed, so that the handler can count what is pinned.
  std::uint64_t cookie = 0;
  // With `have` false: the piece is being prepared, and Transport::Provide follows. Until OnServed
  // no other answer to this peer has the same cookie.
  bool later = false;
};

// How bytes travel over a connection.
struct PathReport {
  std::string text;  // for people: "tcp", "tcp, 4 connections", "ucx: tcp/lo", "ucx:
                     // rc_mlx5/mlx5_0:1 (RDMA)"
  bool rdma = false;
  bool staged = false;  // a device's memory goes through buffers of the host's
  bool encrypted = false;
};

class Handler {
 public:
  virtual ~Handler() = default;
  // The peer is connected and proven (see Options::job_key), whichever end connected.
  virtual void OnPeerUp(PeerId peer, const MemberId& who, const PathReport& path) = 0;
  // A Connect did not reach OnPeerUp within its time-out, or was refused; no peer was created.
  virtual void OnConnectFailed(const MemberId& who, const Error& error) = 0;
  virtual void OnPeerDown(PeerId peer, const Error& reason) = 0;
  // A small message arrived. `bytes` is valid during the call only.
  virtual void OnMessage(PeerId peer, std::span<const std::byte> bytes) = 0;
  // A peer asks for a piece. The answered slice is read until OnServed(cookie): do not write to it
  // before.
  virtual ServeAnswer OnFetch(PeerId peer, const PieceName& name) = 0;
  // The slice answered with `cookie` is no longer read: it was sent, the receiver refused it, or
  // the connection has ended. A `later` answer is not wanted any more either.
  virtual void OnServed(PeerId peer, std::uint64_t cookie) = 0;
  // Called exactly once for each Fetch. The destination may be reused from here on, not earlier.
  virtual void OnFetchDone(FetchId fetch, FetchStatus status) = 0;
};

struct Capabilities {
  std::string name;     // "tcp", "ucx", "inproc"
  std::string version;  // of the library behind it
  bool host_memory = true;
  bool cuda_memory = false;  // Register(kCuda) works; the library is always asked, never assumed
  std::size_t max_message_bytes = 0;  // largest Send
  std::size_t max_piece_bytes = 0;    // largest Fetch; larger transfers are cut by the caller
  std::size_t fetch_window = 0;  // fetches that may be outstanding to one peer; Fetch refuses more
};

struct Options {
  MemberId self;
  // 32 random bytes that the coordinator gives to every member over the control plane. Each end of
  // a new connection proves to the other that it has it (HMAC-SHA256 over both nonces and
  // identities) before anything else is accepted.
  std::vector<std::byte> job_key;
  // Address to listen on, "127.0.0.1" or an interface's address; the kernel chooses the port.
  // "ucx-rdma" only checks whether it is a loopback address, which it does not serve.
  std::string listen_host = "127.0.0.1";
  std::size_t fetch_window = 8;
  // Connections of tcp to each peer, 1 to 16, over which its fetches are spread. It is the same for
  // all members.
  std::size_t connections = 1;
  // The number of members of the job; 0: unknown. When the job begins, all of them connect to one
  // at once. While none has proven anything, so many have places beside those for strangers.
  std::size_t members = 0;
  // Bytes of small messages queued for one peer; a Send that would exceed it is refused.
  std::size_t send_queue_bytes = 4u << 20;
  Duration connect_timeout = std::chrono::seconds(5);
  // For tcp: a connection ends when the other end's host acknowledges nothing, or its process reads
  // nothing, for about so long. It is at least a second.
  Duration silence_timeout = std::chrono::seconds(60);
  // Traffic is encrypted and cannot be changed on its way, by keys derived from the job's. It is
  // the same for all members; MakeTransport is kUnavailable for a transport without encryption.
  bool encryption = false;
  // Called once, as the first call on the data thread, for a library's requirements on the thread
  // that uses it (ExchangeMemory::EnterThread). Start returns its error. Null: nothing is called.
  std::function<Status()> enter_data_thread;
  // For tcp: the data thread, which serves others as well, so that what they say needs no change of
  // threads. Stop leaves it running. Null: the transport starts one of its own.
  std::shared_ptr<NetworkThread> network = nullptr;
};

class Transport {
 public:
  virtual ~Transport() = default;  // calls Stop

  // Opens the listener and starts the data thread. kUnavailable with the reason where the transport
  // cannot run here.
  virtual Status Start(Handler* handler) = 0;
  // Ends all connections and the data thread; no callback runs after it returns. Call it on any
  // thread but the data thread.
  virtual void Stop() = 0;
  // Runs `task` on the data thread, in order with the other posted tasks. Any thread may call it;
  // it never blocks.
  virtual void Post(std::function<void()> task) = 0;
  // Runs `task` on the data thread at `when` or soon after. It cannot be cancelled: check for
  // staleness in the task.
  virtual void PostAt(Time when, std::function<void()> task) = 0;

  virtual const Capabilities& capabilities() const = 0;
  // The address that a peer passes to Connect. It is valid after Start.
  virtual std::string address() const = 0;

  // Starts to connect to `who` at `address`; it ends in OnPeerUp or OnConnectFailed.
  virtual void Connect(const MemberId& who, const std::string& address) = 0;
  // Ends the connection now, whatever is under way; OnPeerDown follows in a later turn of the data
  // thread.
  virtual void Close(PeerId peer, std::string reason) = 0;

  // Registers memory, once, never per round. It must outlive the registration. It is an error for a
  // kind that capabilities() denies.
  virtual Result<RegionId> Register(MemoryKind kind, void* base, std::size_t bytes) = 0;
  // No fetch or serve may use the region any more.
  virtual void Unregister(RegionId region) = 0;

  // When the last byte of this peer came, also within a message or piece; nullopt where the
  // transport cannot tell.
  virtual std::optional<Time> LastHeard(PeerId) const { return std::nullopt; }

  // Queues a small message. False: the peer's queue is full or the peer is down; nothing was
  // queued.
  [[nodiscard]] virtual bool Send(PeerId peer, std::span<const std::byte> bytes) = 0;

  // Requests `name` into `destination` (destination.bytes == name.bytes; zero is allowed). It
  // returns kUnavailable while the window to this peer is full, or while too many abandoned fetches
  // are not answered yet: try again when a fetch has completed, or later. It returns kClosed when
  // the peer is down, for good.
  virtual Result<FetchId> Fetch(PeerId peer, const PieceName& name, const Slice& destination) = 0;
  // Gives up a fetch; OnFetchDone(kGivenUp) follows (or kOk if it was complete already) once the
  // destination is free. Once the bytes have begun to move, the transport may let them finish or
  // discard them, at most one piece.
  virtual void GiveUp(FetchId fetch) = 0;

  // Gives the piece that OnFetch answered with `later` and this cookie; it has the requested
  // length. OnServed follows, perhaps within this call. Nothing happens when it was given already.
  virtual void Provide(PeerId peer, std::uint64_t cookie, const Slice& slice) = 0;
};

// Makes the transport called "tcp", "ucx" or "ucx-rdma". "ucx" is UCX with all that it finds, also
// its TCP with its open ports, for networks where everybody is trusted. "ucx-rdma" is UCX over RDMA
// alone, without a port; it calls itself "ucx". kUnavailable with the reason when this build or
// machine does not have it.
Result<std::unique_ptr<Transport>> MakeTransport(std::string_view name, Options options);

}  // namespace lockstep::transport
