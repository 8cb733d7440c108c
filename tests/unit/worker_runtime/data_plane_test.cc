#include "worker/runtime/data_plane.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "worker/optimizer/optimizer.h"
#include "worker/runtime/probe.h"

namespace lockstep::worker {
namespace {

constexpr std::uint64_t kParameters = 64;
constexpr std::size_t kJobKeyBytes = 32;

MemberId Member(std::uint32_t worker) { return {WorkerId(worker), Incarnation(1)}; }

// What a worker has without its session and its coordinator, for which the test speaks.
class Plane {
 public:
  // `host`: that it says to be on. `paths`: what it is to find on its machine. `with_ucx`: it has
  // that beside tcp, where this build has it. `formation`: how long its peers have to come.
  explicit Plane(std::uint32_t worker, const std::string& host = "",
                 const transport::paths::Facts& paths = {}, bool require_gpudirect = false,
                 bool with_ucx = false, Duration formation = std::chrono::seconds(60))
      : member_(Member(worker)), layout_({{0, kParameters}}, 1u << 20), host_(host) {
    auto optimizer = MakeOptimizer({});
    EXPECT_TRUE(optimizer.ok());
    optimizer_ = std::move(*optimizer);
    const auto tensors = static_cast<std::uint32_t>(optimizer_->state_names().size());
    auto buffers = WorkerBuffers::Make(layout_, tensors, /*arena=*/false);
    EXPECT_TRUE(buffers.ok());
    buffers_ = std::move(*buffers);
    DataPlane::Setup setup;
    setup.core.self = member_;
    setup.core.host_id = host;
    setup.paths = paths;
    setup.require_gpudirect = require_gpudirect;
    setup.initialize = [](std::span<float> parameters) { std::ranges::fill(parameters, 1.0f); };
    setup.unfit = [this](const std::string& reason) {
      const std::lock_guard lock(mutex_);
      unfit_ = reason;
      changed_.notify_all();
    };
    setup.core.mapping = false;
    setup.core.state_tensors = tensors;
    setup.core.formation_timeout = formation;
    setup.timeouts = TimeoutsFrom(std::chrono::seconds(30));
    setup.job_key.assign(kJobKeyBytes, std::byte{7});
    setup.data_host = "127.0.0.1";
    setup.transports = {{"tcp", "tcp", {}}};
    if (with_ucx) setup.transports.insert(setup.transports.begin(), {"ucx", "ucx", {}});
    setup.to_coordinator = [this](msg::FromWorker message, std::function<void()>) {
      if (auto* reached = std::get_if<msg::Reached>(&message)) {
        const std::lock_guard lock(mutex_);
        reached_ = std::move(*reached);
        changed_.notify_all();
      }
    };
    auto plane = DataPlane::Start(std::move(setup), layout_, *buffers_, *optimizer_, compute_);
    EXPECT_TRUE(plane.ok());
    plane_ = std::move(*plane);
  }

  DataPlane& operator*() { return *plane_; }

  PeerInfo InfoFor(const std::string& transport) const {
    for (const TransportOffer& offer : plane_->offers()) {
      if (offer.name == transport && offer.error.empty()) {
        return {.member = member_,
                .data_address = offer.address,
                .mapping_address = {},
                .host_id = host_};
      }
    }
    return {};
  }

  // nullopt: no answer to the Form, for very long.
  std::optional<msg::Reached> WaitForReached(std::uint32_t formation = 1) {
    std::unique_lock lock(mutex_);
    const auto has_come = [&] { return reached_ && reached_->formation == formation; };
    changed_.wait_for(lock, std::chrono::seconds(90),
                      [&] { return has_come() || !unfit_.empty(); });
    return has_come() ? reached_ : std::nullopt;
  }
  std::string unfit() {
    const std::lock_guard lock(mutex_);
    return unfit_;
  }

 private:
  const MemberId member_;
  const Layout layout_;
  const std::string host_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<WorkerBuffers> buffers_;
  ComputeQueue compute_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<msg::Reached> reached_;
  std::string unfit_;
  std::unique_ptr<DataPlane> plane_;
};

// Waits for lines of the log, which it takes for itself while it lives.
class LogWatch {
 public:
  LogWatch() : sink_(std::make_shared<Sink>()), before_(spdlog::default_logger()) {
    auto logger = std::make_shared<spdlog::logger>("watched", sink_);
    logger->set_level(spdlog::level::debug);
    spdlog::set_default_logger(std::move(logger));
  }
  ~LogWatch() { spdlog::set_default_logger(before_); }
  LogWatch(const LogWatch&) = delete;
  LogWatch& operator=(const LogWatch&) = delete;

  bool WaitFor(const std::string& line) { return sink_->WaitFor(line); }

 private:
  class Sink final : public spdlog::sinks::base_sink<std::mutex> {
   public:
    bool WaitFor(const std::string& line) {
      std::unique_lock lock(mutex_);
      return more_.wait_for(lock, std::chrono::seconds(90),
                            [&] { return lines_.find('\n' + line + '\n') != std::string::npos; });
    }

   private:
    void sink_it_(const spdlog::details::log_msg& message) override {
      lines_.append(message.payload.data(), message.payload.size()).push_back('\n');
      more_.notify_all();
    }
    void flush_() override {}
    std::string lines_ = "\n";
    std::condition_variable_any more_;
  };
  std::shared_ptr<Sink> sink_;
  std::shared_ptr<spdlog::logger> before_;
};

// The machine begins on the first transport. The peer has its Form earlier and is connected over
// another one, and measured, before the machine goes there.
TEST(DataPlane, ReportsPeersThatConnectedBeforeTheMachineMoved) {
  LogWatch log;
  Plane early(0, "", {}, false, /*with_ucx=*/true);
  Plane late(1, "", {}, false, /*with_ucx=*/true);
#ifdef LOCKSTEP_HAVE_UCX
  ASSERT_EQ((*late).offers().front().error, "") << "with one transport this tests nothing";
#else
  GTEST_SKIP() << "this build has one transport only";
#endif
  const msg::Form to_early{
      .formation = 1, .transport = "tcp", .connect_to = {late.InfoFor("tcp")}, .expect = {}};
  (*early).Post(event::FromCoordinator{to_early});
  ASSERT_TRUE(log.WaitFor("worker 1 is connected over tcp, the path is measured"));
  ASSERT_TRUE(log.WaitFor("worker 0 is connected over tcp, the path is measured"));

  const msg::Form to_late{
      .formation = 1, .transport = "tcp", .connect_to = {}, .expect = {early.InfoFor("tcp")}};
  (*late).Post(event::FromCoordinator{to_late});
  const auto second = late.WaitForReached();
  ASSERT_TRUE(second && second->peers.size() == 1);
  EXPECT_TRUE(second->peers.front().reached) << second->peers.front().error;
  EXPECT_EQ(second->peers.front().path, "tcp");
  const auto first = early.WaitForReached();
  ASSERT_TRUE(first && first->peers.size() == 1);
  EXPECT_TRUE(first->peers.front().reached) << first->peers.front().error;
}

// It was set over the transport that is closed once the job has begun, and is due no later than the
// one that is set after that.
TEST(DataPlane, ATimerIsDueAlsoWhereItsTransportIsClosed) {
  Plane plane(0, "", {}, false, /*with_ucx=*/true, /*formation=*/std::chrono::seconds(1));
#ifndef LOCKSTEP_HAVE_UCX
  GTEST_SKIP() << "this build has one transport only";
#endif
  PeerInfo nobody;
  nobody.member = Member(1);
  const auto form = [&](std::uint32_t formation, const char* transport,
                        std::vector<PeerInfo> expect) {
    (*plane).Post(event::FromCoordinator{msg::Form{.formation = formation,
                                                   .transport = transport,
                                                   .connect_to = {},
                                                   .expect = std::move(expect)}});
  };
  form(1, "ucx", {nobody});
  form(2, "tcp", {});
  ASSERT_TRUE(plane.WaitForReached(2));
  msg::Start start{.source = StateSource::kSeed, .plan = {}, .total_samples_before = 0};
  start.plan.owners = {1, {{Member(0), 1}}};
  start.plan.members = {Member(0)};
  (*plane).Post(event::FromCoordinator{start});
  form(3, "tcp", {nobody});
  const auto reached = plane.WaitForReached(3);
  ASSERT_TRUE(reached && reached->peers.size() == 1);
  EXPECT_EQ(reached->peers.front().error, "no connection in time");
}

// Two that reach each other over TCP; both have their Form.
void Meet(Plane& one, Plane& other) {
  (*one).Post(event::FromCoordinator{msg::Form{
      .formation = 1, .transport = "tcp", .connect_to = {other.InfoFor("tcp")}, .expect = {}}});
  (*other).Post(event::FromCoordinator{msg::Form{
      .formation = 1, .transport = "tcp", .connect_to = {}, .expect = {one.InfoFor("tcp")}}});
}

transport::paths::Facts AGpuAndAnRdmaPort() {
  transport::paths::Facts facts;
  facts.gpu = true;
  facts.machine.rdma.emplace_back();
  facts.machine.rdma.back().device = "mlx5_0";
  facts.machine.rdma.back().state = "ACTIVE";
  return facts;
}

TEST(DataPlane, SaysOfAGpuThatItsGradientsAreStaged) {
  Plane gpu(0, "a", AGpuAndAnRdmaPort());
  Plane cpu(1, "b");
  Meet(gpu, cpu);
  const auto from_gpu = gpu.WaitForReached();
  ASSERT_TRUE(from_gpu && from_gpu->peers.size() == 1);
  EXPECT_EQ(from_gpu->peers.front().path, "tcp, staged through host memory");
  const auto from_cpu = cpu.WaitForReached();
  ASSERT_TRUE(from_cpu && from_cpu->peers.size() == 1);
  EXPECT_EQ(from_cpu->peers.front().path, "tcp");
}

// Connects, and never has what it is asked for: so does a link that loses large packets alone.
class NeverServes final : public transport::Handler {
 public:
  void OnPeerUp(transport::PeerId, const MemberId&, const transport::PathReport&) override {}
  void OnConnectFailed(const MemberId&, const Error&) override {}
  void OnPeerDown(transport::PeerId, const Error&) override {}
  void OnMessage(transport::PeerId, std::span<const std::byte>) override {}
  transport::ServeAnswer OnFetch(transport::PeerId, const PieceName&) override {
    return {.have = false, .slice = {}, .cookie = ++asked_, .later = true};
  }
  void OnServed(transport::PeerId, std::uint64_t) override {}
  void OnFetchDone(transport::FetchId, FetchStatus) override {}

 private:
  std::uint64_t asked_ = 0;
};

TEST(DataPlane, SaysOfAConnectedPeerThatNothingComesOverTheLink) {
  NeverServes handler;
  transport::Options options;
  options.self = Member(1);
  options.job_key.assign(kJobKeyBytes, std::byte{7});
  auto peer = transport::MakeTransport("tcp", std::move(options));
  ASSERT_TRUE(peer.ok());
  ASSERT_TRUE((*peer)->Start(&handler).ok());
  Plane plane(0, "", {}, false, false, /*formation=*/std::chrono::seconds(1));
  (*plane).Post(event::FromCoordinator{msg::Form{.formation = 1,
                                                 .transport = "tcp",
                                                 .connect_to = {{.member = Member(1),
                                                                 .data_address = (*peer)->address(),
                                                                 .mapping_address = {},
                                                                 .host_id = {}}},
                                                 .expect = {}}});
  const auto reached = plane.WaitForReached();
  (*peer)->Stop();
  ASSERT_TRUE(reached && reached->peers.size() == 1);
  EXPECT_FALSE(reached->peers.front().reached);
  EXPECT_TRUE(
      reached->peers.front().error.starts_with("it is connected, but 256 KiB that it should "
                                               "send have not arrived within "))
      << reached->peers.front().error;
}

TEST(DataPlane, GpuDirectThatIsRequiredAndNotThereMakesUnfit) {
  Plane gpu(0, "a", AGpuAndAnRdmaPort(), /*require_gpudirect=*/true);
  Plane cpu(1, "b");
  Meet(gpu, cpu);
  EXPECT_FALSE(gpu.WaitForReached());
  EXPECT_EQ(
      gpu.unfit(),
      "--require-gpudirect: worker 1 is reached by tcp, staged through host memory: the job's "
      "transport is tcp; with exchange.transport = auto the coordinator's log says who lacks RDMA, "
      "and why");
}

TEST(DataPlane, GpuDirectIsNotRequiredOnTheSameHost) {
  Plane gpu(0, "a", AGpuAndAnRdmaPort(), /*require_gpudirect=*/true);
  Plane neighbour(1, "a");
  Meet(gpu, neighbour);
  const auto reached = gpu.WaitForReached();
  ASSERT_TRUE(reached && reached->peers.size() == 1);
  EXPECT_EQ(gpu.unfit(), "");
}

TEST(Probe, RatesInWords) {
  EXPECT_EQ(RateText(0), "not measured");
  EXPECT_EQ(RateText(12.345), "12.3 GB/s");
  EXPECT_EQ(RateText(0.1), "0.1 GB/s");
  EXPECT_EQ(RateText(0.0304), "30.4 MB/s");
  EXPECT_EQ(RateText(4e-6), "0.004 MB/s");
}

}  // namespace
}  // namespace lockstep::worker
