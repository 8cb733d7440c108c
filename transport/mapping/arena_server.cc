#include "transport/mapping/arena_server.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "transport/fork_guard.h"
#include "transport/handshake.h"
#include "transport/mapping/address.h"
#include "transport/mapping/grant.h"
#include "transport/mapping/os.h"
#include "transport/open_files.h"
#include "transport/places.h"

namespace lockstep::transport {
namespace {

// How long accepting rests after the process has run out of descriptors or memory.
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);

// The socket's buffer holds a whole handshake; a client that lets it fill up is not a peer.
bool SendNow(int socket, std::span<const std::byte> bytes) {
  return send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(bytes.size());
}

std::optional<ucred> PeerOf(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  return peer;
}

// Another user's process is no peer, whatever key it has.
bool MayAsk(uid_t uid) { return uid == geteuid() || uid == 0; }

void SendGrant(int socket, ArenaGrant grant, std::span<const int> descriptors) {
  iovec part{.iov_base = &grant, .iov_len = sizeof(grant)};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE((1 + kMaxDeviceBlocks) * sizeof(int))>
      control{};
  LOCKSTEP_CHECK(!descriptors.empty() && descriptors.size() <= 1 + kMaxDeviceBlocks);
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
  std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  // The peer notices a failure: it finds the connection closed.
  (void)sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

class Server final : public ArenaServer {
 public:
  // `device_memory`: null where the blocks lie in the host's.
  Server(UniqueFd arena, std::shared_ptr<const ExportedBlocks> device_memory,
         const ArenaGrant& grant, std::span<const std::byte> job_key,
         const ArenaServerOptions& options, UniqueFd listener, UniqueFd stop, std::string address)
      : arena_(std::move(arena)),
        device_memory_(std::move(device_memory)),
        grant_(grant),
        job_key_(job_key.begin(), job_key.end()),
        options_(options),
        listener_(std::move(listener)),
        listener_guard_(listener_.get()),
        stop_(std::move(stop)),
        address_(std::move(address)) {}

  ~Server() override {
    if (!thread_.joinable()) return;
    const std::uint64_t one = 1;
    const ssize_t written = write(stop_.get(), &one, sizeof(one));
    LOCKSTEP_CHECK(written == sizeof(one), "cannot wake the thread of an arena's server");
    thread_.join();
  }

  const std::string& address() const override { return address_; }

  Status Launch() {
    // Signals of the process are for its own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    Status status;
    try {
      thread_ = std::thread([this] { Run(); });
      pthread_setname_np(thread_.native_handle(), "ls-arena");
    } catch (const std::system_error& error) {
      status = Error{ErrorCode::kUnavailable,
                     std::string("cannot start the thread of an arena's server: ") + error.what()};
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return status;
  }

 private:
  struct Pending {
    UniqueFd socket;
    ForkGuard guard;  // ends before the socket is closed
    Places::Ticket place = 0;
    std::unique_ptr<Handshake> handshake;
    Time deadline;
  };

  void Run() {
    std::vector<pollfd> polled;
    for (;;) {
      const Time now = MonotonicNow();
      EndIf([&](const Pending& p) { return p.deadline <= now; });
      const bool may_accept = accept_from_ <= now;
      Time wake = accept_from_ > now ? accept_from_ : kNever;
      polled.clear();
      polled.push_back({stop_.get(), POLLIN, 0});
      polled.push_back({may_accept ? listener_.get() : -1, POLLIN, 0});
      for (const Pending& p : pending_) {
        polled.push_back({p.socket.get(), POLLIN, 0});
        wake = std::min(wake, p.deadline);
      }
      if (poll(polled.data(), polled.size(), PollTimeout(wake, now)) < 0) continue;
      if (polled[0].revents != 0) return;
      std::size_t i = 1;
      EndIf([&](Pending& p) { return polled[++i].revents != 0 && !Serve(p); });
      if (polled[1].revents != 0) Accept();
    }
  }

  template <class Done>
  void EndIf(Done&& done) {
    std::erase_if(pending_, [&](Pending& p) {
      if (!done(p)) return false;
      places_.GiveBack(p.place);
      return true;
    });
  }

  static int PollTimeout(Time wake, Time now) {
    if (wake == kNever) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(wake - now).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000));
  }

  void Accept() {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      const bool passing = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
      if (!passing) accept_from_ = MonotonicNow() + kAcceptPause;
      return;
    }
    const std::optional<ucred> peer = PeerOf(socket.get());
    if (!peer || !MayAsk(peer->uid)) return;
    const Time now = MonotonicNow();
    const auto taken = places_.Take(now, std::to_string(peer->pid));
    if (taken.ended) std::erase_if(pending_, [&](auto& p) { return p.place == *taken.ended; });
    ForkGuard guard(socket.get());
    pending_.push_back({std::move(socket), std::move(guard), taken.ticket,
                        std::make_unique<Handshake>(Handshake::Role::kAcceptor, options_.self,
                                                    job_key_, std::nullopt),
                        now + options_.handshake_timeout});
  }

  // Takes one message. False: the connection has done its work or is not worth keeping.
  bool Serve(Pending& pending) {
    const int socket = pending.socket.get();
    places_.Heard(pending.place);
    // Without room for control data the kernel drops any descriptors that come along.
    std::array<std::byte, Handshake::kMaxMessageBytes> buffer;
    const ssize_t got = recv(socket, buffer.data(), buffer.size(), MSG_DONTWAIT | MSG_TRUNC);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0 || static_cast<std::size_t>(got) > buffer.size()) return false;
    Handshake& handshake = *pending.handshake;
    const auto answer = handshake.Consume({buffer.data(), static_cast<std::size_t>(got)});
    if (!answer) {
      SendNow(socket, handshake.farewell());
      return false;
    }
    if (!answer->empty() && !SendNow(socket, *answer)) return false;
    if (!handshake.done()) return true;
    Grant(socket);
    return false;
  }

  void Grant(int socket) const {
    ArenaGrant grant = grant_;
    std::vector<int> descriptors = {arena_.get()};
    if (device_memory_ == nullptr) {
      SendGrant(socket, grant, descriptors);
      return;
    }
    device_memory_->Look([&](const std::vector<ExportedBlocks::Block>& blocks) {
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (!blocks[i].fd) continue;
        grant.block_bytes.at(i) = blocks[i].bytes;
        descriptors.push_back(blocks[i].fd.get());
      }
      SendGrant(socket, grant, descriptors);
    });
  }

  const UniqueFd arena_;
  const std::shared_ptr<const ExportedBlocks> device_memory_;
  const ArenaGrant grant_;
  const std::vector<std::byte> job_key_;
  const ArenaServerOptions options_;
  const UniqueFd listener_;
  const ForkGuard listener_guard_;
  const UniqueFd stop_;
  const std::string address_;

  // Only the thread uses it.
  std::vector<Pending> pending_;
  Places places_{{.most = PlacesForStrangers(options_.max_pending) + options_.members}};
  Time accept_from_ = Time::min();

  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<ArenaServer>> ArenaServer::Start(const Arena& arena,
                                                        std::span<const std::byte> job_key,
                                                        const ArenaServerOptions& options) {
  LOCKSTEP_CHECK(!job_key.empty() && options.max_pending > 0);
  UniqueFd fd(fcntl(arena.fd(), F_DUPFD_CLOEXEC, 0));
  UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  UniqueFd stop(eventfd(0, EFD_CLOEXEC));
  if (!fd || !listener || !stop) {
    return SystemError(ErrorCode::kUnavailable, "cannot serve an arena", errno);
  }
  const MappingAddress address = MappingAddress::Make();
  const auto at = address.ToSocket();
  if (bind(listener.get(), at.get(), at.bytes) != 0 || listen(listener.get(), SOMAXCONN) != 0) {
    return SystemError(ErrorCode::kUnavailable, "cannot listen at " + address.Format(), errno);
  }
  const ArenaGrant grant{.magic = ArenaGrant::kMagic,
                         .nonce = arena.nonce(),
                         .device = arena.device_name(),
                         .block_bytes = {}};
  auto server = std::make_unique<Server>(std::move(fd), arena.exported(), grant, job_key, options,
                                         std::move(listener), std::move(stop), address.Format());
  if (Status launched = server->Launch(); !launched) return launched.error();
  return std::unique_ptr<ArenaServer>(std::move(server));
}

}  // namespace lockstep::transport
