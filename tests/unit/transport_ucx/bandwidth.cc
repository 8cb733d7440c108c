// How fast pieces come from another process on this machine, for sizes of pieces and windows. Not a
// test: it asserts nothing.
//
//   transport_bandwidth [ucx|tcp|tls [SECONDS]]     of each combination; tls: tcp with encryption
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "tests/unit/transport_ucx/node.h"

namespace lockstep::transport::test {
namespace {

constexpr std::size_t kRegionBytes = 64u << 20;

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "transport_bandwidth: %s\n", why.c_str());
  std::_Exit(1);
}

std::unique_ptr<Transport> Make(const std::string& name, std::uint32_t worker) {
  Options options = MakeOptions(worker);
  options.fetch_window = 64;
  options.encryption = name == "tls";
  auto made = MakeTransport(options.encryption ? "tcp" : name, std::move(options));
  if (!made) Die(made.error().message);
  return std::move(*made);
}

int ServeUntilTheEnd(const std::string& transport) {
  std::vector<std::byte> source = Pattern(kRegionBytes);
  RegionId region;
  Node node(Make(transport, 1), [&](PeerId, const PieceName& name) {
    return ServeAnswer{true, {region, name.offset, name.bytes}, 0};
  });
  node.Start();
  region = *node.Call(
      [&] { return node.transport().Register(MemoryKind::kHost, source.data(), source.size()); });
  std::printf("%s\n", node.transport().address().c_str());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}

// Keeps `window` fetches under way for a while; records little, to not measure itself.
class Fetcher final : public Handler {
 public:
  explicit Fetcher(Transport& transport) : transport_(transport), target_(kRegionBytes) {}

  void OnPeerUp(PeerId peer, const MemberId&, const PathReport& path) override {
    peer_ = peer;
    std::printf("%s\n%10s %6s %10s\n", path.text.c_str(), "bytes", "window", "MiB/s");
    region_ = *transport_.Register(MemoryKind::kHost, target_.data(), target_.size());
    up_.set_value();
  }
  void OnConnectFailed(const MemberId&, const Error& error) override { Die(error.message); }
  void OnPeerDown(PeerId, const Error& reason) override {
    if (outstanding_ > 0) Die(reason.message);
  }
  void OnMessage(PeerId, std::span<const std::byte>) override {}
  ServeAnswer OnFetch(PeerId, const PieceName&) override { return {}; }
  void OnServed(PeerId, std::uint64_t) override {}
  void OnFetchDone(FetchId, FetchStatus status) override {
    if (status != FetchStatus::kOk) Die("a fetch failed");
    --outstanding_;
    moved_ += bytes_;
    const Time now = MonotonicNow();
    if (now < end_) return Fill();
    if (outstanding_ > 0) return;
    std::printf("%10zu %6zu %10.0f\n", bytes_, window_,
                static_cast<double>(moved_) / Seconds(now - begin_) / (1u << 20));
    std::fflush(stdout);
    done_->set_value();
  }

  void WaitUntilUp() { up_.get_future().wait(); }
  void Measure(std::size_t bytes, std::size_t window, Duration duration) {
    std::promise<void> done;
    transport_.Post([&] {
      bytes_ = bytes;
      window_ = window;
      moved_ = 0;
      next_ = 0;
      done_ = &done;
      begin_ = MonotonicNow();
      end_ = begin_ + duration;
      Fill();
    });
    done.get_future().wait();
  }

 private:
  void Fill() {
    while (outstanding_ < window_) {
      PieceName name;
      name.offset = next_;
      name.bytes = bytes_;
      next_ = next_ + 2 * bytes_ > kRegionBytes ? 0 : next_ + bytes_;
      const auto fetch = transport_.Fetch(peer_, name, {region_, name.offset, bytes_});
      if (!fetch) Die(fetch.error().message);
      ++outstanding_;
    }
  }

  Transport& transport_;
  std::vector<std::byte> target_;
  std::promise<void> up_;
  PeerId peer_;
  RegionId region_;
  std::size_t bytes_ = 0;
  std::size_t window_ = 0;
  std::size_t moved_ = 0;
  std::size_t next_ = 0;
  std::size_t outstanding_ = 0;
  Time begin_;
  Time end_;
  std::promise<void>* done_ = nullptr;
};

int Main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "ucx";
  if (argc == 3 && std::string(argv[2]) == "serve") return ServeUntilTheEnd(name);
  const double seconds = argc == 3 ? std::atof(argv[2]) : 0.5;
  if (argc > 3 || seconds <= 0 || (name != "ucx" && name != "tcp" && name != "tls")) {
    std::fprintf(stderr, "usage: transport_bandwidth [ucx|tcp|tls [SECONDS]]\n");
    return 2;
  }
  const Duration duration = FromSeconds(seconds);
  std::array<int, 2> to{};
  std::array<int, 2> from{};
  if (pipe(to.data()) != 0 || pipe(from.data()) != 0) return 1;
  const pid_t child = fork();
  if (child == 0) {
    dup2(to[0], STDIN_FILENO);
    dup2(from[1], STDOUT_FILENO);
    close(to[1]);
    execl("/proc/self/exe", argv[0], name.c_str(), "serve", nullptr);
    _exit(127);
  }
  std::string address;
  char c = 0;
  while (read(from[0], &c, 1) == 1 && c != '\n') address += c;

  auto transport = Make(name, 0);
  Fetcher fetcher(*transport);
  if (!transport->Start(&fetcher)) return 1;
  transport->Post([&] { transport->Connect({WorkerId(1), Incarnation(1)}, address); });
  fetcher.WaitUntilUp();
  const std::size_t largest = transport->capabilities().max_piece_bytes;
  for (const std::size_t window : {1, 2, 4, 8, 16}) {
    for (std::size_t bytes = 64u << 10; bytes <= largest; bytes *= 4) {
      fetcher.Measure(bytes, window, duration);
    }
  }
  transport->Stop();
  close(to[1]);
  waitpid(child, nullptr, 0);
  return 0;
}

}  // namespace
}  // namespace lockstep::transport::test

int main(int argc, char** argv) { return lockstep::transport::test::Main(argc, argv); }
