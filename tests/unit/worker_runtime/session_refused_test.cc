// A session whose coordinator refuses it: whenever that comes, the reason gets through. And what a
// session refuses by itself, or tells a coordinator that says nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/host_port.h"
#include "base/job_options.h"
#include "transport/control/channel.h"
#include "worker/runtime/session.h"

namespace lockstep::worker {
namespace {

using ::testing::HasSubstr;
namespace control = transport::control;

enum class Refuses : std::uint8_t { kAtOnce, kWhenReady, kNever };

// Lets a worker in, and refuses it in the next breath, when it is ready, or not at all.
class Refusing {
 public:
  explicit Refusing(Refuses when, JobConfig config = {}) : when_(when), config_(std::move(config)) {
    config_.exchange.transport = "tcp";
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
  // What the worker has left for; empty: it has said nothing. After its end.
  const std::string& Left() {
    AwaitEnd();
    return left_;
  }

 private:
  void Welcomed(std::unique_ptr<control::WorkerChannel> channel) {
    channel_ = std::move(channel);
    channel_->Start({.on_message =
                         [this](const msg::FromWorker& message) {
                           const auto* leave = std::get_if<msg::Leave>(&message);
                           if (leave != nullptr) left_ = leave->reason;
                           if (!std::holds_alternative<msg::Ready>(message)) return;
                           if (when_ == Refuses::kWhenReady) Refuse();
                         },
                     .on_closed = [this](const Error&) { ended_.set_value(); },
                     .on_drained = nullptr});
    msg::Welcome welcome;
    welcome.self = {WorkerId(0), Incarnation(1)};
    welcome.term = Term(1);
    welcome.job_id = "0123456789abcdef";
    welcome.job_key = std::vector<std::byte>(32, std::byte{7});
    welcome.config_text = ToIni(config_);
    welcome.workers = 1;
    channel_->Send(welcome);
    if (when_ == Refuses::kAtOnce) Refuse();
  }
  void Refuse() {
    channel_->Send(msg::Refuse{"its data are other data", false});
    channel_->Close();
  }

  const Refuses when_;
  JobConfig config_;
  boost::asio::io_context io_;
  std::unique_ptr<control::ControlServer> server_;
  std::unique_ptr<control::WorkerChannel> channel_;
  std::string address_;
  std::string left_;
  std::promise<void> ended_;
  std::thread thread_;
};

SessionPtr JoinAt(const std::string& address) {
  SessionOptions options;
  options.coordinator = address;
  auto session = Session::Join(std::move(options));
  EXPECT_TRUE(session.ok()) << session.error().message;
  return session.ok() ? *std::move(session) : nullptr;
}

JobDescription Sixteen() {
  JobDescription job;
  job.parameter_count = 16;
  job.blocks = {16};
  job.finish_order = {0};
  job.initialize = [](std::span<float> parameters) { std::ranges::fill(parameters, 0.0f); };
  job.dataset_digest = "d";
  job.train_samples = 16;
  return job;
}

class SessionRefused : public ::testing::TestWithParam<Refuses> {};
INSTANTIATE_TEST_SUITE_P(, SessionRefused, ::testing::Values(Refuses::kAtOnce, Refuses::kWhenReady),
                         [](const auto& each) {
                           return each.param == Refuses::kWhenReady ? "WhenItIsReady"
                                                                    : "BeforeItBegins";
                         });

TEST_P(SessionRefused, TheReasonIsNotLost) {
  Refusing coordinator(GetParam());
  const SessionPtr session = JoinAt(coordinator.address());
  ASSERT_NE(session, nullptr);
  if (GetParam() == Refuses::kAtOnce) coordinator.AwaitEnd();
  ASSERT_TRUE(session->Begin(Sixteen()).ok());
  const Work work = session->Next();
  EXPECT_EQ(work.kind, Work::Kind::kEnd);
  EXPECT_THAT(work.reason, HasSubstr("refuses this worker: its data are other data"));
  EXPECT_TRUE(work.failed);
  EXPECT_TRUE(work.unfit) << "status 2";
}

TEST(SessionThatIsInterrupted, TellsWhyAlsoBeforeItHasBegun) {
  for (const bool begins : {false, true}) {
    Refusing coordinator(Refuses::kNever);
    SessionPtr session = JoinAt(coordinator.address());
    ASSERT_NE(session, nullptr);
    session->Interrupt("for a reason of its own");
    if (begins) {
      ASSERT_TRUE(session->Begin(Sixteen()).ok());
      const Work work = session->Next();
      EXPECT_EQ(work.kind, Work::Kind::kEnd);
      EXPECT_TRUE(work.left);
    }
    session.reset();
    EXPECT_EQ(coordinator.Left(), "for a reason of its own") << begins;
  }
}

// In one line, here: a coordinator would close the connection, or could save nothing.
TEST(SessionThatBegins, RefusesWhatNoJobCanHave) {
  Refusing coordinator(Refuses::kNever);
  const SessionPtr session = JoinAt(coordinator.address());
  ASSERT_NE(session, nullptr);
  const auto error = [&](const auto& change) {
    JobDescription job = Sixteen();
    job.tensors = {{"a", {8}}, {"b", {8}}};
    change(job);
    const Status begun = session->Begin(std::move(job));
    EXPECT_FALSE(begun.ok());
    return begun.ok() ? std::string() : begun.error().message;
  };
  const auto named = [&](std::string name) {
    return error([&](JobDescription& job) { job.tensors[1].name = std::move(name); });
  };
  EXPECT_EQ(named("a"), "two tensors are named \"a\"");
  EXPECT_THAT(named(""), HasSubstr("a tensor is named \"\""));
  EXPECT_THAT(named("two\nlines"), HasSubstr("printable"));
  EXPECT_THAT(named("\xff"), HasSubstr("printable"));
  EXPECT_THAT(named(std::string(4097, 'x')), HasSubstr("1 to 4096 bytes"));
  EXPECT_THAT(named("__metadata__"), HasSubstr("__metadata__"));
  EXPECT_THAT(named("optimizer.momentum.a"), HasSubstr("the optimizer's state of another one"));
  EXPECT_THAT(
      error([](JobDescription& job) { job.tensors[1].shape = {8, 1, 1, 1, 1, 1, 1, 1, 1}; }),
      HasSubstr("has 9 dimensions, of at most 8"));
  EXPECT_THAT(error([](JobDescription& job) {
                for (int i = 0; i < 65535; ++i) job.tensors.push_back({std::to_string(i), {0}});
              }),
              HasSubstr("65537 tensors"));
  EXPECT_THAT(error([](JobDescription& job) { job.train_samples = msg::kMaxSamples + 1; }),
              HasSubstr("4294967296 training samples"));
  EXPECT_THAT(error([](JobDescription& job) { job.test_samples = ~std::uint64_t{0}; }),
              HasSubstr("18446744073709551615 test samples"));
  EXPECT_THAT(error([](JobDescription& job) { job.dataset_digest = std::string(4097, 'd'); }),
              HasSubstr("has 4097 bytes"));
  EXPECT_THAT(error([](JobDescription& job) {
                job.dataset_digest = std::string(4096, 'd');
                job.groups = {{.parameters = 16, .group = {.lr_factor = 2}}};
              }),
              HasSubstr("the digest of the data has 4"));
  EXPECT_DEATH(session->EvaluationDone(0, 0), "EvaluationDone without an evaluation");
}

// What the config allows and this worker's program or device does not.
TEST(SessionThatBegins, RefusesWhatDoesNotGoWithItsProgram) {
  const auto error = [](const auto& set, const auto& change) {
    JobConfig config;
    set(config);
    Refusing coordinator(Refuses::kNever, config);
    const SessionPtr session = JoinAt(coordinator.address());
    JobDescription job = Sixteen();
    change(job);
    const Status begun = session->Begin(std::move(job));
    return begun.ok() ? std::string() : begun.error().message;
  };
  const auto powersgd = [](JobConfig& config) { config.exchange.compression = "powersgd"; };
  const auto bf16 = [](JobConfig& config) { config.exchange.dtype = "bf16"; };
  const auto local = [](JobConfig& config) { config.policy.name = "local+backup"; };
  EXPECT_EQ(error(powersgd, [](JobDescription&) {}),
            "exchange.compression = powersgd needs the shapes of the tensors");
  EXPECT_EQ(error(powersgd, [](JobDescription& job) { job.tensors = {{"a", {16}}}; }), "");
  EXPECT_THAT(error(bf16, [](JobDescription& job) { job.averages = true; }),
              HasSubstr("exchange.dtype = bf16 would round running statistics"));
  EXPECT_THAT(error(local, [](JobDescription& job) { job.collect = [](std::span<float>) {}; }),
              HasSubstr("policy.name = local+backup and gradients computed on "));
}

// Before anybody is asked: in C and Python there is nobody else who looks at it.
TEST(SessionWithoutACoordinator, ListensNowhereThatWantsASecret) {
  for (const std::string host : {"10.0.0.7", "0.0.0.0", "node3"}) {
    SessionOptions options;
    options.coordinator = "127.0.0.1:1";
    options.data_host = host;
    options.connect_timeout = std::chrono::milliseconds(100);
    const auto session = Session::Join(std::move(options));
    ASSERT_FALSE(session.ok());
    EXPECT_EQ(session.error().code, ErrorCode::kInvalid);
    EXPECT_THAT(session.error().message, HasSubstr("data host " + host + ": "));
  }
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
