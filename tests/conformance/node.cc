#include "tests/conformance/node.h"

#include <algorithm>

namespace lockstep::transport {

std::size_t Node::Seen::Count(FetchStatus status) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(done, [&](const auto& entry) { return entry.second == status; }));
}

Node::Node(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {}

Node::~Node() { Stop(); }

void Node::Stop() {
  transport_->Stop();
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
  }
  EXPECT_TRUE(fetching_.empty()) << fetching_.size() << " fetches were never completed";
  EXPECT_TRUE(serving_.empty()) << serving_.size() << " serves had no OnServed";
  EXPECT_EQ(seen_.up.size(), seen_.down.size()) << "a peer without OnPeerDown";
}

RegionId Node::Register(std::span<std::byte> memory) {
  return Run([memory, kind = memory_kind](Transport& transport) {
    auto region = transport.Register(kind, memory.data(), memory.size());
    EXPECT_TRUE(region.ok());
    return *region;
  });
}

Result<FetchId> Node::Fetch(PeerId peer, const PieceName& name, const Slice& destination) {
  auto fetch = transport_->Fetch(peer, name, destination);
  if (fetch) {
    EXPECT_TRUE(fetching_.emplace(*fetch, peer).second) << "a FetchId used twice";
  }
  return fetch;
}

Result<FetchId> Node::RunFetch(PeerId peer, const PieceName& name, const Slice& destination) {
  return Run(
      [this, peer, name, destination](Transport&) { return Fetch(peer, name, destination); });
}

void Node::Connect(const MemberId& who, const std::string& address) {
  Run([who, address](Transport& transport) { transport.Connect(who, address); });
}

bool Node::Send(PeerId peer, std::string_view text) {
  return Run([peer, text](Transport& transport) { return transport.Send(peer, Bytes(text)); });
}

void Node::SendAll(PeerId peer, std::vector<std::string> texts) {
  struct Sender {
    Transport& transport;
    PeerId peer;
    std::vector<std::string> texts;
    std::size_t next = 0;

    static void Go(const std::shared_ptr<Sender>& self) {
      while (self->next < self->texts.size()) {
        if (!self->transport.Send(self->peer, Bytes(self->texts[self->next]))) {
          self->transport.PostAt(MonotonicNow() + std::chrono::microseconds(200),
                                 [self] { Go(self); });
          return;
        }
        ++self->next;
      }
    }
  };
  const auto sender = std::make_shared<Sender>(*transport_, peer, std::move(texts));
  transport_->Post([sender] { Sender::Go(sender); });
}

Node::Seen Node::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

std::string Node::Failures() const {
  std::string text;
  for (const auto& [who, error] : seen().failed) text += "; failed: " + error.message;
  return text;
}

PeerId Node::AwaitPeer(const MemberId& who) {
  PeerId found;
  EXPECT_TRUE(Await([&](const Seen& seen) {
    for (const auto& [peer, identity] : seen.up) {
      if (identity == who && !seen.down.contains(peer)) found = peer;
    }
    return found != PeerId();
  })) << "no connection came up"
      << Failures();
  return found;
}

void Node::ExpectUp(PeerId peer, const char* callback) {
  EXPECT_TRUE(seen_.up.contains(peer)) << callback << " before OnPeerUp";
  EXPECT_FALSE(seen_.down.contains(peer)) << callback << " after OnPeerDown";
}

void Node::OnPeerUp(PeerId peer, const MemberId& who, const PathReport& path) {
  Record([&](Seen& seen) {
    EXPECT_TRUE(seen.up.emplace(peer, who).second) << "a PeerId used twice";
    seen.paths[peer] = path;
  });
  if (on_peer_up) on_peer_up(peer);
}

void Node::OnConnectFailed(const MemberId& who, const Error& error) {
  Record([&](Seen& seen) { seen.failed.emplace_back(who, error); });
}

void Node::OnPeerDown(PeerId peer, const Error& reason) {
  for (const auto& [fetch, from] : fetching_) {
    EXPECT_NE(from, peer) << "OnPeerDown before a fetch was completed";
  }
  for (const auto& [cookie, to] : serving_) {
    EXPECT_NE(to, peer) << "OnPeerDown before a serve had its OnServed";
  }
  Record([&](Seen& seen) {
    ExpectUp(peer, "OnPeerDown");
    EXPECT_FALSE(reason.message.empty());
    seen.down.emplace(peer, reason);
  });
  if (on_peer_down) on_peer_down(peer);
}

void Node::OnMessage(PeerId peer, std::span<const std::byte> bytes) {
  if (on_message) on_message(peer, bytes);
  Record([&](Seen& seen) {
    ExpectUp(peer, "OnMessage");
    seen.messages.emplace_back(
        peer, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  });
}

ServeAnswer Node::OnFetch(PeerId peer, const PieceName& name) {
  ServeAnswer answer = on_fetch ? on_fetch(peer, name) : ServeAnswer{};
  const bool serving = answer.have || answer.later;
  if (serving) {
    answer.cookie = ++last_cookie_;
    serving_.emplace(answer.cookie, peer);
  }
  Record([&](Seen& seen) {
    ExpectUp(peer, "OnFetch");
    ++seen.asked;
    seen.serving += serving ? 1 : 0;
  });
  return answer;
}

void Node::OnServed(PeerId peer, std::uint64_t cookie) {
  const auto found = serving_.find(cookie);
  if (found == serving_.end()) {
    ADD_FAILURE() << "OnServed for what is not being served, or twice";
    return;
  }
  EXPECT_EQ(found->second, peer);
  serving_.erase(found);
  Record([&](Seen& seen) {
    ExpectUp(peer, "OnServed");
    ++seen.served;
    --seen.serving;
  });
}

void Node::OnFetchDone(FetchId fetch, FetchStatus status) {
  EXPECT_EQ(fetching_.erase(fetch), 1u) << "OnFetchDone for what was not asked for, or twice";
  if (on_fetch_done) on_fetch_done(fetch, status);
  Record([&](Seen& seen) {
    EXPECT_TRUE(seen.done.emplace(fetch, status).second) << "OnFetchDone twice";
  });
}

}  // namespace lockstep::transport
