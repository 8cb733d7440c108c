// A transport with a handler that records what happens and holds the transport to its contract:
// every broken promise about the order or number of callbacks is a test failure.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace lockstep::transport {

// Longer than any wait of a healthy run; a wait that takes it fails its test.
inline constexpr std::chrono::seconds kPatience{60};

inline std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

class Node final : public Handler {
 public:
  struct Seen {
    std::map<PeerId, MemberId> up;
    std::map<PeerId, PathReport> paths;
    std::map<PeerId, Error> down;
    std::vector<std::pair<MemberId, Error>> failed;
    std::vector<std::pair<PeerId, std::string>> messages;
    std::map<FetchId, FetchStatus> done;
    std::size_t asked = 0;   // OnFetch
    std::size_t served = 0;  // OnServed
    std::size_t serving = 0;

    std::size_t Count(FetchStatus status) const;
  };
  // The cookie is the node's to choose; that of an answer that comes later is last_cookie().
  using Serve = std::function<ServeAnswer(PeerId, const PieceName&)>;

  explicit Node(std::unique_ptr<Transport> transport);
  ~Node() override;

  Status Start() { return transport_->Start(this); }
  void Stop();
  Transport& transport() { return *transport_; }
  std::string address() const { return transport_->address(); }
  const Capabilities& capabilities() const { return transport_->capabilities(); }

  // Runs `task(Transport&)` on the data thread and waits for what it returns. From the test's
  // thread.
  template <class Task>
  auto Run(Task task) {
    using Value = decltype(task(*transport_));
    auto result = std::make_shared<std::promise<Value>>();
    auto future = result->get_future();
    transport_->Post([this, result, task = std::move(task)]() mutable {
      if constexpr (std::is_void_v<Value>) {
        task(*transport_);
        result->set_value();
      } else {
        result->set_value(task(*transport_));
      }
    });
    return future.get();
  }

  RegionId Register(std::span<std::byte> memory);
  // On the data thread. Fetches that the node knows of are checked for completing once.
  Result<FetchId> Fetch(PeerId peer, const PieceName& name, const Slice& destination);
  std::uint64_t last_cookie() const { return last_cookie_; }
  // Not completed yet. On the data thread.
  const std::map<FetchId, PeerId>& fetching() const { return fetching_; }
  // From the test's thread.
  Result<FetchId> RunFetch(PeerId peer, const PieceName& name, const Slice& destination);
  void Connect(const MemberId& who, const std::string& address);
  bool Send(PeerId peer, std::string_view text);
  // Sends on the data thread, again and again while the queue is full, in order.
  void SendAll(PeerId peer, std::vector<std::string> texts);

  // Waits until what was seen satisfies `holds`; false after kPatience.
  template <class Predicate>
  bool Await(Predicate holds) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return holds(std::as_const(seen_)); });
  }
  Seen seen() const;
  // The peer that is `who`, once it is up (the last, if there are several); fails the test
  // otherwise.
  PeerId AwaitPeer(const MemberId& who);
  std::string Failures() const;  // what became of the attempts to connect, for a test that fails

  MemoryKind memory_kind = MemoryKind::kHost;  // of Register

  // What to do on the data thread, besides recording. Set before Start, or by Run.
  Serve on_fetch;
  std::function<void(PeerId, std::span<const std::byte>)> on_message;
  std::function<void(FetchId, FetchStatus)> on_fetch_done;
  std::function<void(PeerId)> on_peer_up;
  std::function<void(PeerId)> on_peer_down;

  void OnPeerUp(PeerId peer, const MemberId& who, const PathReport& path) override;
  void OnConnectFailed(const MemberId& who, const Error& error) override;
  void OnPeerDown(PeerId peer, const Error& reason) override;
  void OnMessage(PeerId peer, std::span<const std::byte> bytes) override;
  ServeAnswer OnFetch(PeerId peer, const PieceName& name) override;
  void OnServed(PeerId peer, std::uint64_t cookie) override;
  void OnFetchDone(FetchId fetch, FetchStatus status) override;

 private:
  template <class Change>
  void Record(Change change) {
    {
      const std::lock_guard lock(mutex_);
      EXPECT_FALSE(stopped_) << "a callback after Stop";
      change(seen_);
    }
    changed_.notify_all();
  }
  void ExpectUp(PeerId peer, const char* callback);

  std::unique_ptr<Transport> transport_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Seen seen_;
  bool stopped_ = false;
  // Data thread only.
  std::map<FetchId, PeerId> fetching_;
  std::map<std::uint64_t, PeerId> serving_;
  std::uint64_t last_cookie_ = 0;
};

}  // namespace lockstep::transport
