// One TCP connection, from its first byte to its end, alone or in a group (group.h). It lives on
// the data thread.
//
// It reads and writes only when the socket is ready and leaves no operation pending in the kernel,
// so a destination is free the moment its fetch is given up.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/fork_guard.h"
#include "transport/handshake.h"
#include "transport/region_table.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/inbox.h"
#include "transport/tcp/outbox.h"
#include "transport/tcp/tls_stream.h"
#include "transport/tls/psk.h"
#include "transport/transport.h"

namespace lockstep::transport::tcp {

class Connection;
class Group;

// The services that a connection needs of its transport, and its reports to it.
class ConnectionOwner {
 public:
  virtual const Options& options() const = 0;
  virtual const HostRegionTable& regions() const = 0;
  virtual Handler& handler() = 0;
  // Unwanted bytes are read into it.
  virtual std::span<std::byte> scratch() = 0;
  // The context for connections that are to be encrypted, else null.
  virtual SSL_CTX* tls(tls::Role role) = 0;
  // Encrypted bytes are read into it.
  virtual std::span<std::byte> tls_scratch() = 0;
  // The handshake is over. With one connection to a peer no other step follows: the owner calls
  // Begin.
  virtual Status OnProven(Connection& connection) = 0;
  // With several connections: the other end names this one's number; an acceptor does so as the
  // answer to this end's number. Where that fits, the owner calls Settle; it may call Begin.
  virtual Status OnPlace(Connection& connection, const ConnectionPlace& place) = 0;
  // The connector reports that all connections are there. The owner calls Begin.
  virtual Status OnBegin(Connection& connection) = 0;
  // For a connection that has not begun.
  virtual void OnGreetingFailed(Connection& connection, const Error& error) = 0;
  // All operations under way here have been completed; the owner calls OnPeerDown.
  virtual void OnDown(Connection& connection, const Error& reason) = 0;

 protected:
  ~ConnectionOwner() = default;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using Endpoint = boost::asio::ip::tcp::endpoint;

  // `whom`: the member to connect to, with the number of this connection; nullopt for an incoming
  // connection.
  Connection(ConnectionOwner& owner, Socket socket, std::optional<MemberId> whom,
             const ConnectionPlace& place);

  bool up() const { return state_ == State::kUp; }

  // Call exactly one of them, once. Both end in the owner's Begin or in OnGreetingFailed within the
  // connect time-out, in a later turn.
  void StartConnecting(const Endpoint& endpoint);
  void StartAccepted();
  // Sets the connection's number, now that both ends know it.
  void Settle(const ConnectionPlace& place);
  // From here on it carries the traffic between `peer` and this end.
  void Begin(PeerId peer);

  const std::optional<MemberId>& whom() const { return whom_; }
  PeerId peer() const { return peer_; }
  bool proven() const { return handshake_.done(); }
  const MemberId& identity() const { return handshake_.peer(); }
  const ConnectionPlace& place() const { return place_; }
  bool settled() const { return settled_; }
  // It is null until the owner has found the group, and after its end.
  Group* group() const { return group_; }
  void set_group(Group* group) { group_ = group; }
  Time last_heard() const { return last_heard_; }
  PathReport path() const;

  bool Send(std::span<const std::byte> bytes);
  // Call it only when up(); the group keeps the window.
  void Fetch(FetchId fetch, const PieceName& name, std::span<std::byte> destination);
  std::size_t live_fetches() const { return live_fetches_; }
  // Includes fetches that were given up.
  std::size_t unanswered() const { return fetches_.size(); }
  std::uint64_t bytes_awaited() const { return bytes_awaited_; }
  // Fetches of the other end that are not answered.
  std::size_t asked() const { return outbox_.answers() + deferred_.size(); }
  // False: not a fetch of this connection.
  bool GiveUp(FetchId fetch);
  // Gives the body of a deferred answer. False: no such answer waits here.
  bool Provide(std::uint64_t cookie, std::span<const std::byte> body);
  // No callback for this peer comes from here on, except those of the connection's end, in a later
  // turn.
  void CloseLater(std::string reason);
  // Ends it within this call.
  void End(const Error& reason);

 private:
  enum class State : std::uint8_t {
    kGreeting,
    kForming,  // proven; until all connections to the peer are there
    kUp,
    kEnding,
    kEnded
  };
  struct PendingFetch {
    FetchId id;
    std::span<std::byte> destination;
    std::size_t begun = 0;  // bytes of it that came, or that a received header announces
    bool given_up = false;
    bool owes_given_up = false;  // OnFetchDone(kGivenUp) has not been called yet
  };
  // A fetch of the peer whose answer comes later.
  struct Deferred {
    std::uint64_t id = 0;
    std::uint64_t cookie = 0;
    std::uint64_t bytes = 0;
  };

  bool begun() const { return state_ == State::kUp || state_ == State::kEnding; }
  bool alive() const { return state_ != State::kEnding && state_ != State::kEnded; }
  void StartTimer(const char* too_late);
  void StartGreeting();
  // Only for an incoming connection. False: the connection has ended.
  bool CheckFirstByte();
  // Continues the TLS handshake as far as possible now. False: it is not over.
  bool Secure();
  void Greet();
  Result<Moved> Read(std::span<iovec> into);
  Result<Moved> Write(std::span<iovec> from);
  void WaitReadable();
  void WaitWritable();
  void OnReadable();
  void ScheduleFlush();
  void Flush();
  // Handles the received frames. False: the connection has ended or is about to.
  bool HandleFrames();
  Status HandleFrame();
  Status HandleGreeting();
  Status HandleForming();
  Status HandleSettings();
  void PushSettings();
  void SendFarewell();
  // Tells the other end the reason for the end of this connection, and returns it.
  Error Refuse(const std::string& reason);
  Status HandleFetch();
  Status HandlePieceHeader();
  Status HandleGone();
  void HandleCancel();
  void FinishFetch(std::vector<PendingFetch>::iterator fetch, FetchStatus status);
  void TellGivenUp(FetchId fetch);
  std::vector<PendingFetch>::iterator Find(std::uint64_t id);

  ConnectionOwner& owner_;
  Socket socket_;
  ForkGuard guard_;
  boost::asio::steady_timer greeting_timer_;
  const std::optional<MemberId> whom_;
  Handshake handshake_;
  ConnectionPlace place_;
  Group* group_ = nullptr;
  PeerId peer_;
  Time last_heard_;
  State state_ = State::kGreeting;
  std::optional<TlsStream> tls_;
  bool first_byte_checked_ = false;
  bool greeting_begun_ = false;  // false: TLS, where it is used, is still being set up
  Inbox inbox_;
  Outbox outbox_;
  bool flush_scheduled_ = false;
  bool waiting_writable_ = false;
  bool lone_answer_ = false;     // one piece was requested, and at most one is awaited
  std::size_t peer_window_ = 0;  // 0: its settings have not come yet
  bool settled_ = false;
  bool awaits_begin_ = false;  // a begin frame is next
  std::size_t live_fetches_ = 0;
  std::uint64_t bytes_awaited_ = 0;  // the lengths of fetches_
  // All connections to the peer together have at most kWindowsOutstanding windows of them.
  std::vector<PendingFetch> fetches_;  // not answered yet
  std::vector<Deferred> deferred_;     // with the outbox's answers within the peer's limit
};

}  // namespace lockstep::transport::tcp
