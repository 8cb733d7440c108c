// What a worker says to its coordinator, whoever of its threads says it: in order, none lost,
// whether messages go out one by one or together.
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "transport/control/channel.h"
#include "worker/runtime/control_link.h"

namespace lockstep::worker {
namespace {

namespace control = transport::control;

// Keeps what it hears.
class Listening {
 public:
  Listening() {
    auto server =
        control::ControlServer::Listen(io_, {},
                                       {[this](std::unique_ptr<control::WorkerChannel> channel,
                                               const msg::Hello&) { Start(std::move(channel)); },
                                        nullptr});
    EXPECT_TRUE(server.ok());
    server_ = *std::move(server);
    thread_ = std::thread([this] { io_.run(); });
  }
  ~Listening() {
    boost::asio::post(io_, [this] { io_.stop(); });
    thread_.join();
    channel_.reset();
    server_.reset();
  }

  HostPort address() const { return server_->address(); }
  std::vector<msg::FromWorker> Await(std::size_t messages) {
    std::unique_lock lock(mutex_);
    heard_.wait(lock, [&] { return received_.size() >= messages; });
    return received_;
  }

 private:
  void Start(std::unique_ptr<control::WorkerChannel> channel) {
    channel_ = std::move(channel);
    channel_->Start({.on_message =
                         [this](msg::FromWorker message) {
                           const std::lock_guard lock(mutex_);
                           received_.push_back(std::move(message));
                           heard_.notify_one();
                         },
                     .on_closed = [](const Error&) {},
                     .on_drained = nullptr});
  }

  boost::asio::io_context io_;
  std::unique_ptr<control::ControlServer> server_;
  std::unique_ptr<control::WorkerChannel> channel_;
  std::mutex mutex_;
  std::condition_variable heard_;
  std::vector<msg::FromWorker> received_;
  std::thread thread_;
};

TEST(ControlLink, SmallAndLargeMessagesKeepTheirOrder) {
  Listening coordinator;
  auto link = ControlLink::Connect(
      coordinator.address(), "", std::chrono::seconds(10),
      {.on_message = [](const msg::ToWorker&) {}, .on_closed = [](const Error&) {}});
  ASSERT_TRUE(link.ok());
  (*link)->Send(msg::Hello{});
  std::mutex mutex;
  std::vector<std::uint64_t> taken;
  std::vector<msg::FromWorker> said;
  const auto note = [&](std::uint64_t number) {
    return [&, number] {
      const std::lock_guard lock(mutex);
      taken.push_back(number);
    };
  };
  // More than is joined, in small ones and in one.
  for (std::uint64_t i = 0; i < 3000; ++i) {
    said.push_back(msg::Level{RoundId(i)});
    if (i % 500 == 250) {
      said.push_back(msg::StateChunk{RoundId(i), 0, 0, false, std::vector<std::byte>(100'000)});
    }
  }
  std::uint64_t chunks = 0;
  for (const msg::FromWorker& message : said) {
    const bool chunk = std::holds_alternative<msg::StateChunk>(message);
    (*link)->Send(message, chunk ? note(chunks++) : std::function<void()>());
  }
  EXPECT_EQ(coordinator.Await(said.size()), said);
  link->reset();  // its thread has ended
  EXPECT_EQ(taken, (std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5}));
}

}  // namespace
}  // namespace lockstep::worker
