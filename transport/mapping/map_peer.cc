#include "transport/mapping/map_peer.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "transport/handshake.h"
#include "transport/mapping/address.h"
#include "transport/mapping/grant.h"
#include "transport/mapping/os.h"

namespace lockstep::transport {
namespace {

Error TimedOut() { return {ErrorCode::kTimeout, "no answer in time"}; }
Error HungUp() { return {ErrorCode::kClosed, "the connection was closed"}; }

Result<UniqueFd> Connect(const MappingAddress& address, Time deadline) {
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) return SystemError(ErrorCode::kUnavailable, "cannot make a socket", errno);
  const auto at = address.ToSocket();
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::microseconds>(deadline - MonotonicNow());
    if (left.count() <= 0) return TimedOut();
    // Connecting waits while the backlog is full; this bounds the wait.
    const timeval wait{.tv_sec = left.count() / 1'000'000, .tv_usec = left.count() % 1'000'000};
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
    if (connect(fd.get(), at.get(), at.bytes) == 0) return fd;
    if (errno == ECONNREFUSED) return Error{ErrorCode::kNotFound, "nobody listens there"};
    if (errno != EINTR && errno != EAGAIN) {
      return SystemError(ErrorCode::kUnavailable, "cannot connect", errno);
    }
  }
}

Status AwaitMessage(int socket, Time deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - MonotonicNow()).count();
    if (left <= 0) return TimedOut();
    pollfd polled{socket, POLLIN, 0};
    const int ready = poll(&polled, 1, static_cast<int>(std::min<std::int64_t>(left, 60'000)));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR)
      return SystemError(ErrorCode::kUnavailable, "cannot wait", errno);
  }
}

Status Send(int socket, std::span<const std::byte> bytes) {
  if (send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return HungUp();
  return {};
}

Status Prove(int socket, Handshake& handshake, Time deadline) {
  if (Status sent = Send(socket, handshake.Begin()); !sent) return sent;
  while (!handshake.done()) {
    if (Status ready = AwaitMessage(socket, deadline); !ready) return ready;
    // Without room for control data the kernel drops any descriptors that come along.
    std::array<std::byte, Handshake::kMaxMessageBytes> buffer;
    const ssize_t got = recv(socket, buffer.data(), buffer.size(), MSG_DONTWAIT | MSG_TRUNC);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return HungUp();
    if (static_cast<std::size_t>(got) > buffer.size()) {
      return Error{ErrorCode::kInvalid, "the other end does not speak Lockstep's handshake"};
    }
    const auto answer = handshake.Consume({buffer.data(), static_cast<std::size_t>(got)});
    if (!answer) {
      if (!handshake.farewell().empty()) (void)Send(socket, handshake.farewell());
      return answer.error();
    }
    if (!answer->empty()) {
      if (Status sent = Send(socket, *answer); !sent) return sent;
    }
  }
  return {};
}

// All received descriptors are ours from here on.
std::vector<UniqueFd> TakeDescriptors(msghdr& message) {
  std::vector<UniqueFd> found;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = 0; at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + at, sizeof(int));
      found.emplace_back(fd);
    }
  }
  return found;
}

// Checks that `device` can be asked for the kind of memory that holds the blocks.
Status CheckDevice(const DeviceName& blocks, const DeviceSharing* device) {
  const auto unavailable = [](std::string why) {
    return Error{ErrorCode::kUnavailable, std::move(why)};
  };
  if (device == nullptr) {
    if (blocks.host()) return {};
    return unavailable(
        fmt::format("it is in the memory of a device ({} {}), which the host cannot read",
                    blocks.kind_text(), blocks.unit_text()));
  }
  const DeviceName own = device->name();
  if (blocks.host()) {
    return unavailable(fmt::format("it is in the host's memory, and this worker's on a device ({})",
                                   own.kind_text()));
  }
  if (blocks.kind == own.kind) return {};
  return unavailable(fmt::format("it is in the memory of another kind of device ({}, not {})",
                                 blocks.kind_text(), own.kind_text()));
}

std::size_t BlocksGiven(const ArenaGrant& grant) {
  if (grant.device.host()) return 0;
  return static_cast<std::size_t>(
      std::ranges::count_if(grant.block_bytes, [](std::uint64_t bytes) { return bytes != 0; }));
}

Result<PeerArena> ReceiveArena(int socket, Time deadline, DeviceSharing* device) {
  for (;;) {
    if (Status ready = AwaitMessage(socket, deadline); !ready) return ready.error();
    ArenaGrant grant;
    iovec part{.iov_base = &grant, .iov_len = sizeof(grant)};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE((1 + kMaxDeviceBlocks) * sizeof(int))>
        control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return HungUp();
    std::vector<UniqueFd> descriptors = TakeDescriptors(message);
    const bool whole = got == sizeof(grant) && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
    if (!whole || grant.magic != ArenaGrant::kMagic || !grant.device.proper() ||
        descriptors.size() != 1 + BlocksGiven(grant)) {
      return Error{ErrorCode::kInvalid, "it sent something else than its arena"};
    }
    if (Status reached = CheckDevice(grant.device, device); !reached) return reached.error();
    if (grant.device.host()) return PeerArena::FromFd(descriptors[0], grant.nonce);
    std::vector<DeviceBlock> blocks;
    for (std::size_t i = 0; i < grant.block_bytes.size(); ++i) {
      if (grant.block_bytes[i] == 0) continue;
      blocks.push_back({i, grant.block_bytes[i], std::move(descriptors[1 + blocks.size()])});
    }
    return PeerArena::FromFds(descriptors[0], grant.nonce, blocks, grant.device, *device);
  }
}

Result<PeerArena> Map(const std::string& address, const MemberId& self, const MemberId& owner,
                      std::span<const std::byte> job_key, Time deadline, DeviceSharing* device) {
  const auto parsed = MappingAddress::Parse(address);
  if (!parsed) return parsed.error();
  if (Status reach = parsed->CheckReach(); !reach) return reach.error();
  auto socket = Connect(*parsed, deadline);
  if (!socket) return socket.error();
  Handshake handshake(Handshake::Role::kConnector, self, job_key, owner);
  if (Status proven = Prove(socket->get(), handshake, deadline); !proven) return proven.error();
  return ReceiveArena(socket->get(), deadline, device);
}

}  // namespace

Result<PeerArena> MapPeer(const std::string& address, const MemberId& self, const MemberId& owner,
                          std::span<const std::byte> job_key, Duration timeout,
                          DeviceSharing* device) {
  auto mapped = Map(address, self, owner, job_key, MonotonicNow() + timeout, device);
  if (!mapped) {
    return Error{mapped.error().code,
                 "cannot map the arena of " + Describe(owner) + ": " + mapped.error().message};
  }
  return mapped;
}

}  // namespace lockstep::transport
