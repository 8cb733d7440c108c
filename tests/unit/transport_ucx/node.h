// A transport with a handler that records what happens, for tests that wait for events instead of
// time.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "transport/ucx/ucx_transport.h"

namespace lockstep::transport::test {

inline Options MakeOptions(std::uint32_t worker) {
  Options options;
  options.self = {WorkerId(worker), Incarnation(1)};
  options.job_key.assign(32, std::byte{7});
  return options;
}

// What the recorder has seen. Guarded by the node's mutex.
struct Seen {
  std::vector<std::pair<PeerId, MemberId>> up;
  std::vector<std::string> paths;
  std::vector<std::pair<PeerId, Error>> down;
  std::vector<std::pair<MemberId, Error>> failed;
  std::vector<std::string> messages;
  std::vector<std::uint64_t> served;
  std::map<FetchId, FetchStatus> fetched;
  std::vector<std::string> order;  // of served, fetched and down
};

class Node final : public Handler {
 public:
  using Serve = std::function<ServeAnswer(PeerId, const PieceName&)>;

  explicit Node(Options options, Serve serve = nullptr)
      : Node(Made(MakeUcxTransport(std::move(options))), std::move(serve)) {}
  Node(std::unique_ptr<Transport> transport, Serve serve)
      : serve_(std::move(serve)), transport_(std::move(transport)) {}
  ~Node() override { transport_->Stop(); }

  void Start() {
    const Status status = transport_->Start(this);
    ASSERT_TRUE(status.ok()) << status.error().message;
  }
  Transport& transport() { return *transport_; }

  // Runs `body` on the data thread and returns its result.
  template <class Body>
  auto Call(Body body) {
    std::promise<decltype(body())> promise;
    auto result = promise.get_future();
    transport_->Post([&] {
      if constexpr (std::is_void_v<decltype(body())>) {
        body();
        promise.set_value();
      } else {
        promise.set_value(body());
      }
    });
    return result.get();
  }

  // False if `condition` has not become true for very long.
  bool WaitFor(const std::function<bool(const Seen&)>& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return condition(seen_); });
  }
  Seen seen() {
    const std::lock_guard lock(mutex_);
    return seen_;
  }

  // Connects and returns the peer.
  PeerId ConnectTo(const MemberId& who, const std::string& address) {
    const std::size_t before = seen().up.size();
    Call([&] { transport_->Connect(who, address); });
    EXPECT_TRUE(WaitFor([&](const Seen& s) { return s.up.size() > before || !s.failed.empty(); }));
    const Seen s = seen();
    EXPECT_TRUE(s.failed.empty()) << s.failed.front().second.message;
    return s.up.empty() ? PeerId() : s.up.back().first;
  }

  void OnPeerUp(PeerId peer, const MemberId& who, const PathReport& path) override {
    Note([&](Seen& s) {
      s.up.emplace_back(peer, who);
      s.paths.push_back(path.text);
    });
  }
  void OnConnectFailed(const MemberId& who, const Error& error) override {
    Note([&](Seen& s) { s.failed.emplace_back(who, error); });
  }
  void OnPeerDown(PeerId peer, const Error& reason) override {
    Note([&](Seen& s) {
      s.down.emplace_back(peer, reason);
      s.order.push_back("down");
    });
  }
  void OnMessage(PeerId peer, std::span<const std::byte> bytes) override {
    if (on_message) on_message(peer);
    Note([&](Seen& s) {
      s.messages.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    });
  }
  ServeAnswer OnFetch(PeerId peer, const PieceName& name) override {
    return serve_ ? serve_(peer, name) : ServeAnswer{};
  }
  void OnServed(PeerId /*peer*/, std::uint64_t cookie) override {
    Note([&](Seen& s) {
      s.served.push_back(cookie);
      s.order.push_back("served");
    });
  }
  void OnFetchDone(FetchId fetch, FetchStatus status) override {
    if (on_fetch_done) on_fetch_done(fetch, status);
    Note([&](Seen& s) {
      EXPECT_TRUE(s.fetched.emplace(fetch, status).second) << "a fetch was completed twice";
      s.order.push_back("fetched");
    });
  }

  // On the data thread, before the event is recorded.
  std::function<void(PeerId)> on_message;
  std::function<void(FetchId, FetchStatus)> on_fetch_done;

 private:
  static std::unique_ptr<Transport> Made(Result<std::unique_ptr<Transport>> made) {
    EXPECT_TRUE(made.ok()) << made.error().message;
    return std::move(*made);
  }
  void Note(const std::function<void(Seen&)>& note) {
    const std::lock_guard lock(mutex_);
    note(seen_);
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Seen seen_;
  Serve serve_;
  std::unique_ptr<Transport> transport_;
};

inline std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

inline std::vector<std::byte> Pattern(std::size_t bytes) {
  std::vector<std::byte> pattern(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    pattern[i] = static_cast<std::byte>((i * 131 + i / 251) & 0xff);
  return pattern;
}

}  // namespace lockstep::transport::test
