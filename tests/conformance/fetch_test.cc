// Bulk: sizes, windows, giving up, pieces that are gone.
#include <cstring>
#include <optional>

#include "tests/conformance/fixture.h"

namespace lockstep::transport {
namespace {

class FetchTest : public PairTest {
 protected:
  // Holds the server's data thread, from now on and until Release.
  void Hold() {
    held_.emplace();
    std::promise<void> holding;
    server_->transport().Post([&holding, held = held_->get_future().share()] {
      holding.set_value();
      held.wait();
    });
    holding.get_future().wait();
  }
  void Release() {
    held_->set_value();
    held_.reset();
  }
  // Also after a failure in between: the server's Stop needs its data thread.
  void TearDown() override {
    if (held_) Release();
    PairTest::TearDown();
  }
  bool AwaitDone(std::size_t count) {
    return fetcher_->Await([=](const Node::Seen& seen) { return seen.done.size() >= count; });
  }

  std::optional<std::promise<void>> held_;
};

TEST_P(FetchTest, AllSizesArriveWholeAndNothingBesideThem) {
  Connect();
  const std::uint64_t largest = server_->capabilities().max_piece_bytes;
  for (const std::uint64_t bytes :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{7}, std::uint64_t{4096},
        std::uint64_t{65535}, std::uint64_t{65536}, std::uint64_t{65537}, largest - 1, largest}) {
    std::ranges::fill(destination_, std::byte{0xEE});
    EXPECT_EQ(FetchAndCheck(PatternPiece(12345, bytes)), FetchStatus::kOk) << bytes;
    EXPECT_TRUE(std::ranges::all_of(std::span(destination_).subspan(bytes), [](std::byte b) {
      return b == std::byte{0xEE};
    })) << bytes;
  }
  // One byte more is two pieces, cut by the caller.
  destination_.assign(destination_.size(), std::byte{0});
  EXPECT_EQ(FetchAndCheck(PatternPiece(0, largest)), FetchStatus::kOk);
  EXPECT_EQ(FetchAndCheck(PatternPiece(largest, 1)), FetchStatus::kOk);
  EXPECT_TRUE(server_->Await([](const Node::Seen& s) { return s.served == 11 && s.serving == 0; }));
}

TEST_P(FetchTest, AGibibyteInPiecesArrivesWhole) {
  const std::uint64_t total = Slow() ? 128u << 20 : 1u << 30;
  Connect(8, 8 * (1u << 20));
  FetchLong(total, 1u << 20, 8);
}

TEST_P(FetchTest, TheLargestPiecesThroughAFullWindowArriveWhole) {
  Connect(8, 8 * (4u << 20));
  FetchLong(Slow() ? 64u << 20 : 256u << 20, server_->capabilities().max_piece_bytes, 8);
}

TEST_P(FetchTest, ThousandsOfPiecesThroughTheWindowInBothDirections) {
  Connect(16, 16 * 4096);
  // The other direction at the same time, over the same connection.
  std::vector<std::byte> back(16 * 512);
  std::vector<std::byte> source = MakePattern(server_->capabilities().max_piece_bytes);
  const RegionId back_region = server_->Register(back);
  const RegionId source_region = fetcher_->Register(source);
  fetcher_->Run([&](Transport&) {
    fetcher_->on_fetch = [&](PeerId, const PieceName& name) {
      return ServePattern(source_region, name);
    };
  });
  constexpr std::size_t kBack = 5000;
  std::size_t asked = 0;
  server_->Run([&](Transport&) {
    const auto next = [&] {
      if (asked == kBack) return;
      const std::uint64_t slot = asked % 16 * 512;
      ASSERT_TRUE(
          server_->Fetch(fetcher_peer_, PatternPiece(asked++, 512), {back_region, slot, 512}).ok());
    };
    server_->on_fetch_done = [&, next](FetchId, FetchStatus status) {
      EXPECT_EQ(status, FetchStatus::kOk);
      next();
    };
    for (int i = 0; i < 16; ++i) next();
  });
  FetchLong(8000 * 3000, 3000, 16);
  EXPECT_TRUE(server_->Await([](const Node::Seen& seen) { return seen.done.size() == kBack; }));
  server_->Run([this](Transport&) { server_->on_fetch_done = nullptr; });
  TearDown();
}

TEST_P(FetchTest, TheWindowIsABoundAndFreesItself) {
  Connect(4);
  Hold();
  for (int round = 0; round < 2; ++round) {
    for (std::uint64_t i = 0; i < 4; ++i) {
      ASSERT_TRUE(
          fetcher_->RunFetch(server_peer_, PatternPiece(i, 100), Destination(i * 100, 100)).ok());
    }
    const auto refused = fetcher_->RunFetch(server_peer_, PatternPiece(9, 1), Destination(900, 1));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
    if (round == 0) Release();
    ASSERT_TRUE(AwaitDone(4));
    if (round == 0) Hold();
    if (round == 1) break;
  }
  Release();
  ASSERT_TRUE(AwaitDone(8));
}

TEST_P(FetchTest, WhatIsNotThereIsGoneAndOldRoundsNeverGiveWrongBytes) {
  Connect();
  // Only pieces of the current round, and of the second attempt at it, are there.
  constexpr std::uint64_t kRound = 7;
  server_->Run([this](Transport&) {
    server_->on_fetch = [this](PeerId, const PieceName& name) {
      if (name.round != kRound || name.attempt != 1) return ServeAnswer{};
      return ServePattern(pattern_region_, name);
    };
  });
  std::ranges::fill(destination_, std::byte{0x55});
  for (std::uint64_t round = 5; round < 9; ++round) {
    for (std::uint32_t attempt = 0; attempt < 3; ++attempt) {
      PieceName name = PatternPiece(100, 5000, round);
      name.attempt = attempt;
      const bool there = round == kRound && attempt == 1;
      std::ranges::fill(destination_, std::byte{0x55});
      EXPECT_EQ(FetchAndCheck(name), there ? FetchStatus::kOk : FetchStatus::kGone);
      EXPECT_EQ(destination_[0] == std::byte{0x55}, !there);
    }
  }
}

TEST_P(FetchTest, GivenUpBeforeItBeganTheDestinationIsFreeAtOnce) {
  Connect();
  Hold();
  const auto kept = fetcher_->RunFetch(server_peer_, PatternPiece(0, 1000), Destination(0, 1000));
  const auto given_up =
      fetcher_->RunFetch(server_peer_, PatternPiece(5, 1000), Destination(1000, 1000));
  ASSERT_TRUE(kept.ok() && given_up.ok());
  fetcher_->Run([&](Transport& transport) { transport.GiveUp(*given_up); });
  // The peer is stopped: the destination must not depend on it.
  ASSERT_TRUE(fetcher_->Await([&](const Node::Seen& s) { return s.done.contains(*given_up); }));
  EXPECT_EQ(fetcher_->seen().done.at(*given_up), FetchStatus::kGivenUp);
  EXPECT_FALSE(fetcher_->seen().done.contains(*kept));
  fetcher_->Run(
      [this](Transport&) { std::ranges::fill(DestinationBytes(1000, 1000), std::byte{0x77}); });
  Release();
  ASSERT_TRUE(fetcher_->Await([&](const Node::Seen& s) { return s.done.contains(*kept); }));
  EXPECT_EQ(fetcher_->seen().done.at(*kept), FetchStatus::kOk);
  // Whatever the peer made of the fetch that was given up, it is behind us after these.
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(FetchAndCheck(PatternPiece(77, 4000), 2000), FetchStatus::kOk);
  }
  EXPECT_TRUE(server_->Await([](const Node::Seen& seen) { return seen.serving == 0; }));
  fetcher_->Run([this](Transport&) {
    EXPECT_TRUE(std::ranges::all_of(DestinationBytes(1000, 1000),
                                    [](std::byte b) { return b == std::byte{0x77}; }));
  });
}

TEST_P(FetchTest, GivingUpAgainAndAgainDoesNotCloseTheWindow) {
  Connect(4, 4 * (1u << 20));
  for (int i = 0; i < 200; ++i) {
    // The window may stay full until the peer has answered what was given up: it does so by itself.
    Result<FetchId> fetch = Error{};
    for (const Time until = MonotonicNow() + kPatience; !fetch && MonotonicNow() < until;) {
      fetch = fetcher_->RunFetch(server_peer_, PatternPiece(1, 1u << 20), Destination(0, 1u << 20));
    }
    ASSERT_TRUE(fetch.ok()) << "the window never opened again";
    fetcher_->Run([&](Transport& transport) { transport.GiveUp(*fetch); });
  }
  ASSERT_TRUE(AwaitDone(200));
  EXPECT_TRUE(server_->Await([](const Node::Seen& seen) { return seen.serving == 0; }));
}

TEST_P(FetchTest, GivenUpAtAnyMomentItCompletesOnceAndTheDestinationStaysFree) {
  constexpr std::uint64_t kBytes = 2u << 20;
  Connect(2, 2 * kBytes);
  const int rounds = Slow() ? 60 : 300;
  for (int i = 0; i < rounds; ++i) {
    Result<FetchId> fetch = Error{};
    while (!fetch) {
      fetch = fetcher_->RunFetch(server_peer_, PatternPiece(1, kBytes), Destination(0, kBytes));
    }
    // From "not yet written" to "complete": the moment moves with the round.
    for (int turns = 0; turns < i % 40; ++turns) fetcher_->Run([](Transport&) {});
    fetcher_->Run([&](Transport& transport) { transport.GiveUp(*fetch); });
    ASSERT_TRUE(fetcher_->Await([&](const Node::Seen& s) { return s.done.contains(*fetch); }));
    const FetchStatus status = fetcher_->seen().done.at(*fetch);
    ASSERT_TRUE(status == FetchStatus::kOk || status == FetchStatus::kGivenUp);
    fetcher_->Run([&](Transport& transport) {
      std::ranges::fill(DestinationBytes(0, kBytes), std::byte{0x33});
      transport.GiveUp(*fetch);  // long done: nothing happens
    });
    ASSERT_EQ(FetchAndCheck(PatternPiece(3, 1000), kBytes), FetchStatus::kOk);
    fetcher_->Run([&](Transport&) {
      ASSERT_TRUE(std::ranges::all_of(DestinationBytes(0, kBytes), [](std::byte b) {
        return b == std::byte{0x33};
      })) << "bytes landed in a destination that was given back";
    });
  }
  EXPECT_TRUE(server_->Await([](const Node::Seen& seen) { return seen.serving == 0; }));
}

TEST_P(FetchTest, SmallMessagesPassWhileBulkMoves) {
  constexpr std::uint64_t kBytes = 4u << 20;
  Connect(8, 8 * kBytes);
  server_->Run([this](Transport& transport) {
    server_->on_message = [&transport](PeerId peer, std::span<const std::byte> bytes) {
      EXPECT_TRUE(transport.Send(peer, bytes));
    };
  });
  // Bulk never pauses: what completes is asked for again until the last echo is back. On RDMA a
  // message takes its turn behind the window.
  const std::size_t echoes = Slow() ? 10 : 100;
  std::size_t pending = 0;
  bool enough = false;
  const auto fetch = [&](std::uint64_t slot) {
    ++pending;
    ASSERT_TRUE(
        fetcher_
            ->Fetch(server_peer_, PatternPiece(slot, kBytes), Destination(slot * kBytes, kBytes))
            .ok());
  };
  std::uint64_t slot = 0;
  fetcher_->Run([&](Transport&) {
    fetcher_->on_fetch_done = [&](FetchId, FetchStatus) {
      --pending;
      if (!enough) fetch(slot++ % 8);
    };
    for (; slot < 8; ++slot) fetch(slot);
  });
  for (std::size_t i = 1; i <= echoes; ++i) {
    ASSERT_TRUE(fetcher_->Send(server_peer_, "ping"));
    ASSERT_TRUE(fetcher_->Await([&](const Node::Seen& s) { return s.messages.size() == i; }));
  }
  fetcher_->Run([&](Transport&) { enough = true; });
  ASSERT_TRUE(server_->Await([](const Node::Seen& seen) { return seen.serving == 0; }));
  TearDown();
}

TEST_P(FetchTest, WhatComesLaterArrivesWhenItIsProvided) {
  Connect();
  std::vector<std::pair<PieceName, std::uint64_t>> asked;  // the server's data thread
  server_->Run([&](Transport&) {
    server_->on_fetch = [&](PeerId, const PieceName& name) {
      asked.emplace_back(name, server_->last_cookie() + 1);
      return ServeAnswer{.have = false, .slice = {}, .cookie = 0, .later = true};
    };
  });
  const std::uint64_t bytes = 70000;
  std::vector<FetchId> fetches;
  for (std::uint64_t i = 0; i < 3; ++i) {
    const auto fetch =
        fetcher_->RunFetch(server_peer_, PatternPiece(i, bytes), Destination(i * bytes, bytes));
    ASSERT_TRUE(fetch.ok());
    fetches.push_back(*fetch);
  }
  ASSERT_TRUE(server_->Await([](const Node::Seen& seen) { return seen.asked == 3; }));
  EXPECT_EQ(fetcher_->seen().done.size(), 0u);
  // In another order, and what was never asked for.
  server_->Run([&](Transport& transport) {
    for (const std::size_t i : {2, 0, 1}) {
      const auto& [name, cookie] = asked[i];
      transport.Provide(fetcher_peer_, cookie, ServePattern(pattern_region_, name).slice);
    }
    transport.Provide(fetcher_peer_, 12345, {pattern_region_, 0, 1});
  });
  ASSERT_TRUE(AwaitDone(3));
  for (std::uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(fetcher_->seen().done.at(fetches[i]), FetchStatus::kOk);
    EXPECT_TRUE(IsPattern(pattern_, PatternPiece(i, bytes), DestinationBytes(i * bytes, bytes)));
  }
  EXPECT_TRUE(server_->Await([](const Node::Seen& s) { return s.served == 3 && s.serving == 0; }));
}

TEST_P(FetchTest, WhatComesLaterMayBeGivenUpAndItsPeerMayGo) {
  Connect();
  std::vector<std::pair<PieceName, std::uint64_t>> asked;  // the server's data thread
  server_->Run([&](Transport&) {
    server_->on_fetch = [&](PeerId, const PieceName& name) {
      asked.emplace_back(name, server_->last_cookie() + 1);
      return ServeAnswer{.have = false, .slice = {}, .cookie = 0, .later = true};
    };
  });
  const auto fetch = fetcher_->RunFetch(server_peer_, PatternPiece(0, 1000), Destination(0, 1000));
  ASSERT_TRUE(fetch.ok());
  ASSERT_TRUE(server_->Await([](const Node::Seen& seen) { return seen.asked == 1; }));
  fetcher_->Run([&](Transport& transport) { transport.GiveUp(*fetch); });
  ASSERT_TRUE(AwaitDone(1));
  EXPECT_EQ(fetcher_->seen().done.at(*fetch), FetchStatus::kGivenUp);
  server_->Run([&](Transport& transport) {
    const auto& [name, cookie] = asked[0];
    transport.Provide(fetcher_peer_, cookie, ServePattern(pattern_region_, name).slice);
  });
  EXPECT_TRUE(server_->Await([](const Node::Seen& s) { return s.served == 1 && s.serving == 0; }));

  ASSERT_TRUE(fetcher_->RunFetch(server_peer_, PatternPiece(0, 1000), Destination(0, 1000)).ok());
  ASSERT_TRUE(server_->Await([](const Node::Seen& seen) { return seen.asked == 2; }));
  server_->Run([&](Transport& transport) { transport.Close(fetcher_peer_, "enough"); });
  EXPECT_TRUE(server_->Await([](const Node::Seen& s) { return s.served == 2 && s.serving == 0; }));
  ASSERT_TRUE(AwaitDone(2));
}

INSTANTIATE_TEST_SUITE_P(Transports, FetchTest, ::testing::ValuesIn(AllTransports()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace lockstep::transport
