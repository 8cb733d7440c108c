// One TCP connection, from its first byte to its end. Lives on the data thread.
//
// Reads and writes only when the socket is ready and never leaves one pending in the kernel, so a
// destination is free the moment its fetch is given up.
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
#include "transport/tcp/inbox.h"
#include "transport/tcp/outbox.h"
#include "transport/tcp/tls_stream.h"
#include "transport/tls/psk.h"
#include "transport/transport.h"

namespace lockstep::transport::tcp {

class Connection;

// What a connection needs of the transport that owns it, and tells it.
class ConnectionOwner {
 public:
  virtual const Options& options() const = 0;
  virtual const HostRegionTable& regions() const = 0;
  virtual Handler& handler() = 0;
  // Bytes that nobody wants are read into it.
  virtual std::span<std::byte> scratch() = 0;
  // Of connections that are to be encrypted, else null.
  virtual SSL_CTX* tls(tls::Role role) = 0;
  // What is to be decrypted is read into it.
  virtual std::span<std::byte> tls_scratch() = 0;
  // The greeting is over: gives the connection its PeerId. OnPeerUp is the owner's to call.
  virtual void OnGreeted(Connection& connection) = 0;
  virtual void OnGreetingFailed(Connection& connection, const Error& error) = 0;
  // All that was under way has been completed; OnPeerDown is the owner's to call.
  virtual void OnDown(Connection& connection, const Error& reason) = 0;

 protected:
  ~ConnectionOwner() = default;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using Endpoint = boost::asio::ip::tcp::endpoint;

  // `whom` we connect to; nothing for a connection that came in.
  Connection(ConnectionOwner& owner, Socket socket, std::optional<MemberId> whom);

  bool up() const { return state_ == State::kUp; }

  // Exactly one of them, once. Both end in OnGreeted or OnGreetingFailed within the connect
  // time-out, in a later turn.
  void StartConnecting(const Endpoint& endpoint);
  void StartAccepted();

  const std::optional<MemberId>& whom() const { return whom_; }
  PeerId peer() const { return peer_; }
  void set_peer(PeerId peer) { peer_ = peer; }
  const MemberId& identity() const { return handshake_.peer(); }
  Time last_heard() const { return last_heard_; }
  PathReport path() const;

  bool Send(std::span<const std::byte> bytes);
  // False: the window is full or the connection is ending.
  bool Fetch(FetchId fetch, const PieceName& name, std::span<std::byte> destination);
  // False: not a fetch of this connection.
  bool GiveUp(FetchId fetch);
  // The body of an answer that was to come later; nothing happens where none waits.
  void Provide(std::uint64_t cookie, std::span<const std::byte> body);
  // No callback for this peer from here on but those that the end of a connection brings, in a
  // later turn.
  void CloseLater(std::string reason);
  // Ends it within this call.
  void End(const Error& reason);

 private:
  enum class State : std::uint8_t { kGreeting, kUp, kEnding, kEnded };
  struct PendingFetch {
    FetchId id;
    std::span<std::byte> destination;
    std::size_t begun = 0;  // bytes of it that came, or are announced by a header that came
    bool given_up = false;
    bool owes_given_up = false;  // OnFetchDone(kGivenUp) has not been called yet
  };
  // A fetch of the peer whose answer comes later.
  struct Deferred {
    std::uint64_t id = 0;
    std::uint64_t cookie = 0;
    std::uint64_t bytes = 0;
  };

  bool alive() const { return state_ == State::kGreeting || state_ == State::kUp; }
  void StartGreeting();
  // False: the connection has ended. Only of one that came in.
  bool CheckFirstByte();
  // The TLS handshake, as far as it goes now. False: it is not over.
  bool Secure();
  void Greet();
  Result<Moved> Read(std::span<iovec> into);
  Result<Moved> Write(std::span<iovec> from);
  void WaitReadable();
  void WaitWritable();
  void OnReadable();
  void ScheduleFlush();
  void Flush();
  // The frames that are there. False: the connection has ended or is about to.
  bool HandleFrames();
  Status HandleFrame();
  Status HandleGreeting();
  void SendFarewell();
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
  PeerId peer_;
  Time last_heard_;
  State state_ = State::kGreeting;
  std::optional<TlsStream> tls_;
  bool first_byte_checked_ = false;
  bool greeting_begun_ = false;  // before, TLS is set up where there is any
  Inbox inbox_;
  Outbox outbox_;
  bool flush_scheduled_ = false;
  bool waiting_writable_ = false;
  bool lone_answer_ = false;     // one piece was asked for, and not more than one is waited for
  std::size_t peer_window_ = 0;  // 0: its settings have not come yet
  std::size_t live_fetches_ = 0;
  std::vector<PendingFetch> fetches_;  // not answered yet; at most kWindowsOutstanding windows
  std::vector<Deferred> deferred_;     // with the outbox's answers at most as many of the peer's
};

}  // namespace lockstep::transport::tcp
