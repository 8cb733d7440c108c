// A coordinator's and a worker's end of the control plane over real loopback sockets, run by the
// test's own thread.
#pragma once

#include <gtest/gtest.h>

#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/control/channel.h"
#include "transport/control/codec.h"
#include "transport/control/frame.h"

namespace lockstep::transport::control {

using namespace std::chrono_literals;

inline Secret SecretOf(char fill) {
  const std::string bytes(32, fill);
  return Secret(std::as_bytes(std::span(bytes)));
}

// Runs the loop until `done`; false when that takes so long that something hangs.
template <class Done>
bool RunUntil(boost::asio::io_context& io, Done&& done) {
  const auto give_up = std::chrono::steady_clock::now() + 90s;
  while (!done()) {
    if (std::chrono::steady_clock::now() > give_up) return false;
    io.restart();
    io.run_one_for(100ms);
  }
  return true;
}

// What came over one end of a channel.
template <class ChannelType, class In>
struct End {
  std::unique_ptr<ChannelType> channel;
  std::vector<In> received;
  std::optional<Error> closed;
  int drained = 0;
  std::vector<std::uint64_t> pongs;
  std::uint64_t resident_bytes = 0;  // by the last of them

  void Start() {
    channel->Start({[this](In message) { received.push_back(std::move(message)); },
                    [this](const Error& why) { closed = why; }, [this] { ++drained; },
                    [this](const msg::Pong& pong) {
                      pongs.push_back(pong.sequence);
                      resident_bytes = pong.resident_bytes;
                    }});
  }
};
using CoordinatorEnd = End<WorkerChannel, msg::FromWorker>;
using WorkerEnd = End<CoordinatorChannel, msg::ToWorker>;

class ControlTest : public ::testing::Test {
 protected:
  void Listen(ControlServer::Options options = {}) {
    auto made = ControlServer::Listen(
        io_, std::move(options),
        {[this](std::unique_ptr<WorkerChannel> channel, msg::Hello hello) {
           auto end = std::make_unique<CoordinatorEnd>();
           end->channel = std::move(channel);
           end->Start();
           hellos_.push_back(std::move(hello));
           workers_.push_back(std::move(end));
         },
         [this](const std::string&, const Error& why) { rejected_.push_back(why); }});
    ASSERT_TRUE(made.ok()) << made.error().message;
    server_ = *std::move(made);
  }

  // Connects and says Hello; the worker's end is started.
  std::unique_ptr<WorkerEnd> Connect(ControlClient::Options options = {}) {
    if (options.coordinator.host.empty()) options.coordinator = server_->address();
    auto result = TryConnect(std::move(options));
    EXPECT_TRUE(result.ok()) << result.error().message;
    if (!result.ok()) return nullptr;
    auto end = std::make_unique<WorkerEnd>();
    end->channel = *std::move(result);
    end->Start();
    end->channel->Send(
        msg::Hello{kProtocolVersion, "test", "host", 1, "cpu", std::nullopt, "boot"});
    return end;
  }

  Result<std::unique_ptr<CoordinatorChannel>> TryConnect(ControlClient::Options options) {
    std::optional<Result<std::unique_ptr<CoordinatorChannel>>> result;
    ControlClient client(io_, std::move(options), [&](auto got) { result = std::move(got); });
    if (!RunUntil(io_, [&] { return result.has_value(); })) {
      return Error{ErrorCode::kTimeout, "the test hangs"};
    }
    return *std::move(result);
  }

  // Both ends of a fresh connection.
  void ConnectPair(ControlServer::Options server = {}, ControlClient::Options client = {}) {
    Listen(std::move(server));
    worker_ = Connect(std::move(client));
    ASSERT_TRUE(worker_);
    ASSERT_TRUE(RunUntil(io_, [&] { return workers_.size() == 1; }));
  }

  CoordinatorEnd& coordinator() { return *workers_.front(); }
  WorkerEnd& worker() { return *worker_; }

  boost::asio::ip::tcp::socket RawConnection() {
    boost::asio::ip::tcp::socket socket(io_);
    const HostPort to = server_->address();
    socket.connect({boost::asio::ip::make_address(to.host), to.port});
    return socket;
  }

  // Everything that comes until the other end closes.
  std::string ReadToEnd(boost::asio::ip::tcp::socket& socket) {
    socket.non_blocking(true);
    std::string text;
    const bool ended = RunUntil(io_, [&] {
      char buffer[4096];
      boost::system::error_code failure;
      const std::size_t got = socket.read_some(boost::asio::buffer(buffer), failure);
      text.append(buffer, got);
      return failure && failure != boost::asio::error::would_block;
    });
    EXPECT_TRUE(ended);
    return text;
  }

  boost::asio::io_context io_;
  std::unique_ptr<ControlServer> server_;
  std::vector<std::unique_ptr<CoordinatorEnd>> workers_;
  std::vector<msg::Hello> hellos_;
  std::vector<Error> rejected_;
  std::unique_ptr<WorkerEnd> worker_;
};

}  // namespace lockstep::transport::control
