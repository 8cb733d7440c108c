#include "tools/doctor/measure.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <utility>

#include "base/time.h"
#include "tools/doctor/cuda.h"
#include "transport/mapping/arena_server.h"
#include "transport/mapping/map_peer.h"
#include "transport/transport.h"

extern char** environ;

namespace lockstep::doctor {
namespace {

constexpr std::size_t kRegionBytes = 16u << 20;
constexpr std::size_t kPieceBytes = 1u << 20;
constexpr std::size_t kWindow = 8;
// One pass over the region does not count: RDMA registers memory at its first use.
constexpr std::size_t kUncounted = kRegionBytes / kPieceBytes;
constexpr Duration kLength = std::chrono::milliseconds(200);
// The process that waits for this one has less patience.
constexpr Duration kConnectTime = std::chrono::minutes(10);

const MemberId kServer{WorkerId(0), Incarnation(1)};
const MemberId kReader{WorkerId(1), Incarnation(1)};

std::vector<std::byte> Key() { return std::vector<std::byte>(32, std::byte{7}); }

class Server final : public transport::Handler {
 public:
  void OnPeerUp(transport::PeerId, const MemberId&, const transport::PathReport&) override {}
  void OnConnectFailed(const MemberId&, const Error&) override {}
  void OnPeerDown(transport::PeerId, const Error&) override {}
  void OnMessage(transport::PeerId, std::span<const std::byte>) override {}
  transport::ServeAnswer OnFetch(transport::PeerId, const PieceName& name) override {
    return {true, {region, name.offset, name.bytes}, 0};
  }
  void OnServed(transport::PeerId, std::uint64_t) override {}
  void OnFetchDone(transport::FetchId, FetchStatus) override {}

  transport::RegionId region;
};

struct Measured {
  std::string path;
  double gb_per_second = 0;
};

// Keeps the window full for kLength, after the uncounted pass.
class Reader final : public transport::Handler {
 public:
  explicit Reader(transport::Transport& transport) : transport_(transport) {}

  void OnPeerUp(transport::PeerId peer, const MemberId&,
                const transport::PathReport& path) override {
    peer_ = peer;
    path_ = path.text;
    for (std::size_t i = 0; i < kWindow; ++i) Ask();
  }
  void OnConnectFailed(const MemberId&, const Error& error) override { End(error); }
  void OnPeerDown(transport::PeerId, const Error& reason) override { End(reason); }
  void OnMessage(transport::PeerId, std::span<const std::byte>) override {}
  transport::ServeAnswer OnFetch(transport::PeerId, const PieceName&) override { return {}; }
  void OnServed(transport::PeerId, std::uint64_t) override {}
  void OnFetchDone(transport::FetchId, FetchStatus status) override {
    if (ended_) return;
    if (status != FetchStatus::kOk) {
      End(Error{ErrorCode::kUnavailable, "a transfer failed"});
      return;
    }
    const Time now = MonotonicNow();
    if (++done_ == kUncounted) begin_ = now;
    const Duration took = now - begin_;
    if (done_ > kUncounted && took >= kLength) {
      const auto bytes = static_cast<double>((done_ - kUncounted) * kPieceBytes);
      End(Measured{path_, bytes / Seconds(took) / 1e9});
      return;
    }
    Ask();
  }

  transport::RegionId region;
  std::future<Result<Measured>> result() { return promise_.get_future(); }

 private:
  void Ask() {
    PieceName name;
    name.offset = asked_++ * kPieceBytes % kRegionBytes;
    name.bytes = kPieceBytes;
    const auto fetch = transport_.Fetch(peer_, name, {region, name.offset, kPieceBytes});
    if (!fetch) End(fetch.error());
  }
  void End(Result<Measured> result) {
    if (!std::exchange(ended_, true)) promise_.set_value(std::move(result));
  }

  transport::Transport& transport_;
  transport::PeerId peer_;
  std::string path_;
  std::size_t asked_ = 0;
  std::size_t done_ = 0;
  Time begin_;
  bool ended_ = false;
  std::promise<Result<Measured>> promise_;
};

Result<std::unique_ptr<transport::Transport>> Open(const std::string& name, const std::string& host,
                                                   const MemberId& self,
                                                   const std::optional<int>& gpu) {
  transport::Options options;
  options.self = self;
  options.job_key = Key();
  options.listen_host = host;
  options.fetch_window = kWindow;
  options.connect_timeout = kConnectTime;
  if (gpu) options.enter_data_thread = [device = *gpu] { return UseDevice(device); };
  return transport::MakeTransport(name, options);
}

// The number in "cuda:0"; nullopt for the host.
std::optional<int> GpuOf(std::string_view memory) {
  constexpr std::string_view kGpu = "cuda:";
  if (!memory.starts_with(kGpu)) return std::nullopt;
  memory.remove_prefix(kGpu.size());
  int number = 0;
  std::from_chars(memory.data(), memory.data() + memory.size(), number);
  return number;
}

Result<std::shared_ptr<std::byte>> Allocate(const std::optional<int>& gpu) {
  if (gpu) return AllocateOn(*gpu, kRegionBytes);
  const auto memory = std::make_shared<std::vector<std::byte>>(kRegionBytes, std::byte{1});
  return std::shared_ptr<std::byte>(memory, memory->data());
}

// Memory belongs to the data thread.
Result<transport::RegionId> Register(transport::Transport& transport, std::byte* memory,
                                     const std::optional<int>& gpu) {
  std::promise<Result<transport::RegionId>> promise;
  auto region = promise.get_future();
  transport.Post([&] {
    promise.set_value(transport.Register(
        gpu ? transport::MemoryKind::kCuda : transport::MemoryKind::kHost, memory, kRegionBytes));
  });
  return region.get();
}

Result<Measured> MeasureTransport(const std::string& name, const std::string& host,
                                  const std::optional<int>& gpu) {
  // Allocate before UCX starts, which looks for the GPU that is in use.
  const auto source = Allocate(gpu);
  if (!source) return source.error();
  const auto destination = Allocate(gpu);
  if (!destination) return destination.error();
  auto serving = Open(name, host, kServer, gpu);
  if (!serving) return serving.error();
  auto reading = Open(name, host, kReader, gpu);
  if (!reading) return reading.error();
  Server server;
  Reader reader(**reading);
  auto result = reader.result();
  if (Status started = (*serving)->Start(&server); !started) return started.error();
  if (Status started = (*reading)->Start(&reader); !started) return started.error();
  const auto server_region = Register(**serving, source->get(), gpu);
  if (!server_region) return server_region.error();
  const auto reader_region = Register(**reading, destination->get(), gpu);
  if (!reader_region) return reader_region.error();
  (*serving)->Post([&] { server.region = *server_region; });
  (*reading)->Post([&] {
    reader.region = *reader_region;
    (*reading)->Connect(kServer, (*serving)->address());
  });
  // The process that waits for us has a bound.
  Result<Measured> measured = result.get();
  (*reading)->Stop();
  (*serving)->Stop();
  return measured;
}

Result<Measured> MeasureMapped() {
  const transport::BlockSpec block{"doctor", kRegionBytes};
  auto arena = transport::Arena::Create(std::span(&block, 1));
  if (!arena) return arena.error();
  const auto key = Key();
  auto server = transport::ArenaServer::Start(*arena, key, {.self = kServer});
  if (!server) return server.error();
  auto peer = transport::MapPeer((*server)->address(), kReader, kServer, key, kConnectTime);
  if (!peer) return peer.error();
  std::vector<std::byte> destination(4u << 20);
  std::size_t bytes = 0;
  const Time begin = MonotonicNow();
  Duration took{};
  do {
    std::memcpy(destination.data(), peer->data(0) + bytes % kRegionBytes, destination.size());
    bytes += destination.size();
    took = MonotonicNow() - begin;
  } while (took < kLength);
  return Measured{"mapped", static_cast<double>(bytes) / Seconds(took) / 1e9};
}

// Runs this program again with `arguments` and a changed environment; returns its output.
Result<std::string> RunAgain(std::vector<std::string> arguments,
                             const std::vector<std::string>& changes, Duration patience) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const auto name = text.substr(0, text.find('=') + 1);
    bool changed = false;
    for (const std::string& change : changes) changed = changed || change.starts_with(name);
    if (!changed) variables.emplace_back(text);
  }
  variables.insert(variables.end(), changes.begin(), changes.end());
  arguments.insert(arguments.begin(), "lockstep-doctor");
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> all;
    for (std::string& text : texts) all.push_back(text.data());
    all.push_back(nullptr);
    return all;
  };
  std::array<int, 2> from{};
  if (pipe2(from.data(), O_CLOEXEC) != 0) return Error{ErrorCode::kUnavailable, "no pipe"};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = -1;
  const int failed = posix_spawn(&child, "/proc/self/exe", &actions, nullptr,
                                 pointers(arguments).data(), pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  close(from[1]);
  std::string said;
  bool late = false;
  const Time until = MonotonicNow() + patience;
  while (failed == 0) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - MonotonicNow()).count();
    pollfd wanted{from[0], POLLIN, 0};
    late = left <= 0 || poll(&wanted, 1, static_cast<int>(left)) == 0;
    std::array<char, 512> bytes{};
    const ssize_t count = late ? 0 : read(from[0], bytes.data(), bytes.size());
    if (count <= 0) break;
    said.append(bytes.data(), static_cast<std::size_t>(count));
  }
  close(from[0]);
  if (failed != 0) return Error{ErrorCode::kUnavailable, "no process can be started"};
  if (late) kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  if (late) {
    return Error{ErrorCode::kTimeout, fmt::format("nothing within {:.3g} s", Seconds(patience))};
  }
  while (said.ends_with('\n')) said.pop_back();
  if (WIFSIGNALED(status)) {
    return Error{ErrorCode::kUnavailable, fmt::format("it crashed (signal {})", WTERMSIG(status))};
  }
  if (WEXITSTATUS(status) != 0) return Error{ErrorCode::kUnavailable, said};
  return said;
}

// `how`: the arguments of MeasureHere.
Bandwidth MeasureApart(Bandwidth what, std::vector<std::string> how,
                       const std::vector<std::string>& environment, Duration patience) {
  how.insert(how.begin(), std::string(kMeasure));
  const auto said = RunAgain(std::move(how), environment, patience);
  if (!said) {
    what.error = said.error().message;
    return what;
  }
  char* end = nullptr;
  what.gb_per_second = std::strtod(said->c_str(), &end);
  what.path = *end == ' ' ? end + 1 : end;
  return what;
}

Bandwidth Named(std::string name, bool wants_rdma = false) {
  Bandwidth bandwidth;
  bandwidth.transport = std::move(name);
  bandwidth.wants_rdma = wants_rdma;
  return bandwidth;
}

Result<Measured> Measure(const std::string& transport, const std::string& host,
                         const std::string& memory) {
  if (transport == "mapped") return MeasureMapped();
  if (transport != "copy") return MeasureTransport(transport, host, GpuOf(memory));
  const auto copied = MeasureCopy(GpuOf(host), GpuOf(memory), kLength);
  if (!copied) return copied.error();
  return Measured{copied->path, copied->gb_per_second};
}

// Runs the measurements one after the other.
class Series {
 public:
  Series(const Facts& facts, Duration patience)
      : facts_(facts), patience_(patience), until_(MonotonicNow() + patience) {}

  std::vector<Bandwidth> Run() {
    Add(Named("mapped"), {"mapped", kLoopback, kHost});
    Add(Named("tcp"), {"tcp", kLoopback, kHost});
    const std::string gpu = facts_.cuda.devices.empty() ? "" : GpuName(0);
    if (!facts_.ucx.version.empty()) Ucx(kHost);
    if (!gpu.empty()) Copies();
    if (!gpu.empty() && facts_.ucx.cuda_memory) Ucx(gpu);
    return std::move(all_);
  }

 private:
  static constexpr const char* kLoopback = "127.0.0.1";
  static constexpr const char* kHost = "host";

  bool InTime() const { return MonotonicNow() < until_; }
  std::string GpuName(std::size_t device) const {
    return fmt::format("cuda:{}", facts_.cuda.devices[device].ordinal);
  }
  void Add(Bandwidth what, std::vector<std::string> how,
           const std::vector<std::string>& environment = {}) {
    all_.push_back(MeasureApart(std::move(what), std::move(how), environment, patience_));
  }

  void Ucx(const std::string& memory) {
    const char* cuda = memory == kHost ? "" : ",cuda";
    Bandwidth loopback = Named("ucx");
    loopback.memory = memory;
    // A variable that chooses RDMA devices would keep UCX from loopback.
    Add(std::move(loopback), {"ucx", kLoopback, memory},
        {fmt::format("UCX_TLS=tcp,self{}", cuda), "UCX_NET_DEVICES=lo"});
    bool first = true;
    for (const RdmaPort* port : Ports(memory)) {
      if (!std::exchange(first, false) && !InTime()) break;
      Bandwidth rdma = Named("ucx rc over " + port->name(), true);
      rdma.memory = memory;
      // A job takes it like this; only a loopback address would matter.
      Add(std::move(rdma), {"ucx-rdma", "0.0.0.0", memory},
          {fmt::format("UCX_TLS=rc,self{}", cuda), "UCX_NET_DEVICES=" + port->name()});
    }
  }

  // The active ports; for the first GPU's memory, its nearest ones first.
  std::vector<const RdmaPort*> Ports(const std::string& memory) const {
    std::vector<const RdmaPort*> ports;
    const auto add = [&](const RdmaPort* port) {
      if (port->active() && std::ranges::find(ports, port) == ports.end()) ports.push_back(port);
    };
    if (memory != kHost) {
      for (const RdmaPort* port :
           transport::paths::NearestPorts(facts_.machine, facts_.cuda.devices.front().pci)) {
        add(port);
      }
    }
    for (const RdmaPort& port : facts_.machine.rdma) add(&port);
    return ports;
  }

  void Copies() {
    const std::size_t count = facts_.cuda.devices.size();
    for (std::size_t i = 0; i < count && (i == 0 || InTime()); ++i) {
      Copy(kHost, GpuName(i));
      Copy(GpuName(i), kHost);
    }
    for (std::size_t i = 1; i < count && (i == 1 || InTime()); ++i) Copy(GpuName(0), GpuName(i));
  }
  void Copy(const std::string& from, const std::string& to) {
    Bandwidth copy = Named(fmt::format("{} to {}", from, to));
    copy.memory = from == kHost ? to : from;
    copy.copy = true;
    Add(std::move(copy), {"copy", from, to});
  }

  const Facts& facts_;
  const Duration patience_;
  const Time until_;
  std::vector<Bandwidth> all_;
};

}  // namespace

int MeasureHere(const std::string& transport, const std::string& host, const std::string& memory) {
  const auto measured = Measure(transport, host, memory);
  if (measured) {
    std::printf("%.6g %s\n", measured->gb_per_second, measured->path.c_str());
  } else {
    std::printf("%s\n", measured.error().message.c_str());
  }
  std::fflush(stdout);
  return measured ? 0 : 1;
}

std::vector<Bandwidth> MeasureAll(const Facts& facts, Duration patience) {
  return Series(facts, patience).Run();
}

}  // namespace lockstep::doctor
