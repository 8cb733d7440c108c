// transport_conformance_peer TRANSPORT WORKER INCARNATION LISTEN_HOST   (named as in make.h)
// The other process of the conformance tests; see child.h.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <future>
#include <string>

#include "tests/conformance/child.h"
#include "tests/conformance/make.h"
#include "tests/conformance/pattern.h"
#include "transport/transport.h"

namespace lockstep::transport {
namespace {

class Peer final : public Handler {
 public:
  explicit Peer(Transport& transport)
      : transport_(transport), pattern_(MakePattern(transport.capabilities().max_piece_bytes)) {}

  void Register() {
    region_ = *transport_.Register(MemoryKind::kHost, pattern_.data(), pattern_.size());
  }

  void OnPeerUp(PeerId, const MemberId&, const PathReport&) override {}
  void OnConnectFailed(const MemberId&, const Error&) override {}
  void OnPeerDown(PeerId, const Error&) override {}
  void OnMessage(PeerId peer, std::span<const std::byte> bytes) override {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (text.starts_with("echo")) (void)transport_.Send(peer, bytes);
    if (text == kDie) transport_.Post([] { ::kill(::getpid(), SIGKILL); });
  }
  ServeAnswer OnFetch(PeerId, const PieceName& name) override {
    return ServePattern(region_, name);
  }
  void OnServed(PeerId, std::uint64_t) override {}
  void OnFetchDone(FetchId, FetchStatus) override {}

 private:
  Transport& transport_;
  std::vector<std::byte> pattern_;
  RegionId region_;
};

int Main(char** arguments) {
  Options options;
  options.self.worker = WorkerId(static_cast<std::uint32_t>(std::atoi(arguments[2])));
  options.self.incarnation = Incarnation(static_cast<std::uint32_t>(std::atoi(arguments[3])));
  options.listen_host = arguments[4];
  options.job_key.assign(32, std::byte{42});
  auto transport = MakeByName(arguments[1], options);
  if (!transport) {
    std::fprintf(stderr, "%s\n", transport.error().message.c_str());
    return 1;
  }
  Peer peer(**transport);
  const Status started = (*transport)->Start(&peer);
  if (!started) {
    std::fprintf(stderr, "%s\n", started.error().message.c_str());
    return 1;
  }
  std::promise<void> registered;
  (*transport)->Post([&] {
    peer.Register();
    registered.set_value();
  });
  registered.get_future().wait();
  std::printf("%s\n", (*transport)->address().c_str());
  std::fflush(stdout);
  for (char c = 0; ::read(STDIN_FILENO, &c, 1) == 1;) {
  }
  (*transport)->Stop();
  return 0;
}

}  // namespace
}  // namespace lockstep::transport

int main(int count, char** arguments) {
  if (count != 5) return 2;
  const int status = lockstep::transport::Main(arguments);
  lockstep::transport::SharedThreads().clear();
  return status;
}
