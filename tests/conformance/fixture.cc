#include "tests/conformance/fixture.h"

#include <cstdlib>

#include "tests/conformance/make.h"
#include "transport/staging/staged_transport.h"

namespace lockstep::transport {

std::vector<std::string> AllTransports() {
  std::vector<std::string> names = ProcessTransports();
  names.insert(names.begin(), "inproc");
  names.push_back("staged");
  return names;
}

std::vector<std::string> ProcessTransports() {
#ifdef LOCKSTEP_HAVE_UCX
  return {"tcp", "tls", "tcp3", "tls3", "ucx", "ucx_addresses"};
#else
  return {"tcp", "tls", "tcp3", "tls3"};
#endif
}

bool Emulated() { return std::getenv("LOCKSTEP_TEST_EMULATED") != nullptr; }

bool Slow() {
#ifdef LOCKSTEP_SANITIZED
  return true;
#else
  return Emulated();
#endif
}

std::string ListenHost() {
  const char* host = std::getenv("LOCKSTEP_TEST_LISTEN_HOST");
  return host == nullptr ? "127.0.0.1" : host;
}

TransportTest::~TransportTest() { SharedThreads().clear(); }

Options TransportTest::OptionsFor(const MemberId& self) const {
  Options options;
  options.self = self;
  options.job_key.assign(32, std::byte{42});
  options.listen_host = ListenHost();
  options.connect_timeout = Slow() ? std::chrono::seconds(30) : std::chrono::seconds(10);
  return options;
}

std::unique_ptr<Transport> TransportTest::MakeUnstarted(Options options) {
  if (GetParam() == "inproc") return network_->MakeTransport(std::move(options));
  const bool staged = GetParam() == "staged";
  auto made = MakeByName(staged ? "tcp" : GetParam(), std::move(options));
  if (!made) {
    ADD_FAILURE() << made.error().message;
    std::abort();
  }
  if (!staged) return std::move(*made);
  const std::size_t piece_bytes = (*made)->capabilities().max_piece_bytes;
  return MakeStagedTransport(std::move(*made), copies_, piece_bytes);
}

std::unique_ptr<Node> TransportTest::MakeNode(Options options) {
  auto node = std::make_unique<Node>(MakeUnstarted(std::move(options)));
  if (GetParam() == "staged") node->memory_kind = MemoryKind::kCuda;
  const Status started = node->Start();
  if (!started) {
    ADD_FAILURE() << started.error().message;
    std::abort();
  }
  return node;
}

std::unique_ptr<Node> TransportTest::MakeNode(const MemberId& self) {
  return MakeNode(OptionsFor(self));
}

void PairTest::Connect(std::size_t fetch_window, std::size_t destination_bytes) {
  Options serving = OptionsFor(serving_identity_);
  Options fetching = OptionsFor(fetching_identity_);
  serving.fetch_window = fetching.fetch_window = fetch_window;
  server_ = MakeNode(serving);
  fetcher_ = MakeNode(fetching);
  pattern_ = MakePattern(server_->capabilities().max_piece_bytes);
  destination_.resize(std::max(destination_bytes, server_->capabilities().max_piece_bytes));
  pattern_region_ = server_->Register(pattern_);
  destination_region_ = fetcher_->Register(destination_);
  server_->Run([this](Transport&) {
    server_->on_fetch = [this](PeerId, const PieceName& name) {
      return ServePattern(pattern_region_, name);
    };
  });
  fetcher_->Connect(serving_identity_, server_->address());
  server_peer_ = fetcher_->AwaitPeer(serving_identity_);
  fetcher_peer_ = server_->AwaitPeer(fetching_identity_);
}

void PairTest::TearDown() {
  // Their data threads use the memory and the hooks of this fixture.
  if (fetcher_) fetcher_->Stop();
  if (server_) server_->Stop();
}

FetchStatus PairTest::FetchAndCheck(const PieceName& name, std::uint64_t offset) {
  auto fetch = fetcher_->RunFetch(server_peer_, name, Destination(offset, name.bytes));
  if (!fetch) {
    ADD_FAILURE() << fetch.error().message;
    return FetchStatus::kPeerDown;
  }
  EXPECT_TRUE(fetcher_->Await([&](const Node::Seen& seen) { return seen.done.contains(*fetch); }));
  const FetchStatus status = fetcher_->seen().done.at(*fetch);
  if (status == FetchStatus::kOk) {
    EXPECT_TRUE(IsPattern(pattern_, name, DestinationBytes(offset, name.bytes)));
  }
  return status;
}

void PairTest::FetchLong(std::uint64_t total, std::uint64_t piece_bytes, std::size_t slots) {
  struct Slot {
    std::uint64_t offset;
    PieceName name;
  };
  std::map<FetchId, Slot> under_way;  // data thread
  std::uint64_t next = 0;
  std::uint64_t wrong = 0;
  std::promise<void> finished;
  const auto refill = [&](std::uint64_t offset) {
    if (next >= total) return;
    const PieceName name = PatternPiece(next, std::min(piece_bytes, total - next));
    auto fetch = fetcher_->Fetch(server_peer_, name, Destination(offset, name.bytes));
    ASSERT_TRUE(fetch.ok()) << fetch.error().message;
    under_way.emplace(*fetch, Slot{offset, name});
    next += name.bytes;
  };
  fetcher_->Run([&](Transport&) {
    fetcher_->on_fetch_done = [&](FetchId id, FetchStatus status) {
      const auto found = under_way.find(id);
      if (found == under_way.end()) return;
      const Slot slot = found->second;
      under_way.erase(found);
      if (status != FetchStatus::kOk ||
          !IsPattern(pattern_, slot.name, DestinationBytes(slot.offset, slot.name.bytes))) {
        ++wrong;
      }
      refill(slot.offset);
      if (under_way.empty()) finished.set_value();
    };
    for (std::size_t slot = 0; slot < slots; ++slot) refill(slot * piece_bytes);
  });
  ASSERT_EQ(finished.get_future().wait_for(kPatience), std::future_status::ready);
  fetcher_->Run([this](Transport&) { fetcher_->on_fetch_done = nullptr; });
  EXPECT_EQ(wrong, 0u);
}

}  // namespace lockstep::transport
