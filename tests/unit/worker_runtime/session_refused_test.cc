// A session whose coordinator refuses it: whenever that comes, the reason gets through.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "base/host_port.h"
#include "base/job_options.h"
#include "transport/control/channel.h"
#include "worker/runtime/session.h"

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;
namespace control = transport::control;

// Lets a worker in, and refuses it in the next breath or when it is ready.
class Refusing {
 public:
  explicit Refusing(bool when_ready) : when_ready_(when_ready) {
    auto server =
        control::ControlServer::Listen(io_, {},
                                       {[this](std::unique_ptr<control::WorkerChannel> channel,
                                               const msg::Hello&) { Welcomed(std::move(channel)); },
                                        nullptr});
    EXPECT_TRUE(server.ok());
    server_ = *std::move(server);
    address_ = ToString(server_->address());
    thread_ = std::thread([this] { io_.run(); });
  }
  ~Refusing() {
    boost::asio::post(io_, [this] { io_.stop(); });
    thread_.join();
    channel_.reset();
    server_.reset();
  }

  const std::string& address() const { return address_; }
  // Until the connection has ended at both ends.
  void AwaitEnd() { ended_.get_future().wait(); }

 private:
  void Welcomed(std::unique_ptr<control::WorkerChannel> channel) {
    channel_ = std::move(channel);
    channel_->Start({.on_message =
                         [this](const msg::FromWorker& message) {
                           if (when_ready_ && std::holds_alternative<msg::Ready>(message)) Refuse();
                         },
                     .on_closed = [this](const Error&) { ended_.set_value(); },
                     .on_drained = nullptr});
    msg::Welcome welcome;
    welcome.self = {WorkerId(0), Incarnation(1)};
    welcome.term = Term(1);
    welcome.job_id = "0123456789abcdef";
    welcome.job_key = std::vector<std::byte>(32, std::byte{7});
    JobConfig config;
    config.exchange.transport = "tcp";
    welcome.config_text = ToIni(config);
    welcome.workers = 1;
    channel_->Send(welcome);
    if (!when_ready_) Refuse();
  }
  void Refuse() {
    channel_->Send(msg::Refuse{"its data are other data", false});
    channel_->Close();
  }

  const bool when_ready_;
  boost::asio::io_context io_;
  std::unique_ptr<control::ControlServer> server_;
  std::unique_ptr<control::WorkerChannel> channel_;
  std::string address_;
  std::promise<void> ended_;
  std::thread thread_;
};

class SessionRefused : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(, SessionRefused, ::testing::Values(false, true), [](const auto& each) {
  return each.param ? "WhenItIsReady" : "BeforeItBegins";
});

TEST_P(SessionRefused, TheReasonIsNotLost) {
  Refusing coordinator(GetParam());
  SessionOptions options;
  options.coordinator = coordinator.address();
  auto session = Session::Join(std::move(options));
  ASSERT_TRUE(session.ok()) << session.error().message;
  if (!GetParam()) coordinator.AwaitEnd();
  JobDescription job;
  job.parameter_count = 16;
  job.blocks = {16};
  job.finish_order = {0};
  job.initialize = [](std::span<float> parameters) { std::ranges::fill(parameters, 0.0f); };
  job.dataset_digest = "d";
  job.train_samples = 16;
  ASSERT_TRUE((*session)->Begin(std::move(job)).ok());
  const Work work = (*session)->Next();
  EXPECT_EQ(work.kind, Work::Kind::kEnd);
  EXPECT_THAT(work.reason, HasSubstr("refuses this worker: its data are other data"));
  EXPECT_TRUE(work.failed);
  EXPECT_TRUE(work.unfit) << "status 2";
}

// What it has proven it need not be asked again.
TEST(SessionWithoutACoordinator, IsToldThatOneThatHasProvenTheSecretDoesNotAnswer) {
  const std::string secret_file =
      (std::filesystem::path(::testing::TempDir()) / "lockstep_session_secret").string();
  std::ofstream(secret_file) << "sixteen bytes or more";
  const auto secret = control::ReadSecretFile(secret_file);
  ASSERT_TRUE(secret.ok());
  boost::asio::io_context io;
  std::vector<std::unique_ptr<control::WorkerChannel>> taken;
  control::ControlServer::Options listen;
  listen.secret = secret->secret;
  auto server = control::ControlServer::Listen(
      io, std::move(listen),
      {[&taken](std::unique_ptr<control::WorkerChannel> channel, const msg::Hello&) {
         taken.push_back(std::move(channel));
       },
       nullptr});
  ASSERT_TRUE(server.ok());
  std::thread thread([&io] { io.run(); });
  SessionOptions options;
  options.coordinator = ToString((*server)->address());
  options.secret_file = secret_file;
  options.connect_timeout = std::chrono::seconds(1);
  const auto session = Session::Join(std::move(options));
  boost::asio::post(io, [&io] { io.stop(); });
  thread.join();
  std::filesystem::remove(secret_file);
  ASSERT_FALSE(session.ok());
  EXPECT_THAT(session.error().message,
              HasSubstr("has proven the secret, and its welcome does not"));
}

// A connection is taken by the kernel before anybody looks at it.
TEST(SessionWithoutACoordinator, IsToldThatNobodyAnswers) {
  boost::asio::io_context io;
  boost::asio::ip::tcp::acceptor silent(io, {boost::asio::ip::make_address("127.0.0.1"), 0});
  SessionOptions options;
  options.coordinator = ToString(HostPort{"127.0.0.1", silent.local_endpoint().port()});
  options.connect_timeout = std::chrono::milliseconds(300);
  const auto session = Session::Join(std::move(options));
  ASSERT_FALSE(session.ok());
  EXPECT_THAT(session.error().message, HasSubstr("takes connections and does not answer"));
}

}  // namespace
}  // namespace lockstep::worker
