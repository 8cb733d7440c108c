// The short transfer with which a worker measures the way to each peer when the connection has come
// up.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/messages.h"
#include "base/time.h"
#include "transport/transport.h"
#include "worker/memory/exchange_memory.h"

namespace lockstep::worker {

// "1.23 GB/s", "31.4 MB/s"; "not measured" for 0.
std::string RateText(double gb_per_second);

// Reads a peer's mapped block once, as it lies in `memory`; GB/s, 0 where it cannot be measured.
// The reduction thread.
double MeasureMapped(ExchangeMemory& memory, const std::byte* data, std::size_t bytes);

// Fetches a few pieces from each peer that comes up, in the memory that the exchange works on. One
// transport; its data thread. Over a slow link there are fewer of them: a peer that is slow to read
// from is a straggler, and not one that cannot be reached.
class Probe {
 public:
  static constexpr std::uint32_t kPieceKind = 0x70726F62;  // "prob": no kind of the exchange
  static constexpr std::size_t kPieceBytes = 256u << 10;
  static constexpr int kPieces = 8;
  static constexpr Duration kLongEnough = std::chrono::seconds(1);  // no further piece after it

  // `piece_bytes`: the largest piece that the peers of the job exchange. Call Open once the
  // transport has started; until then nothing can be served.
  Probe(transport::Transport& transport, ExchangeMemory& memory, std::uint64_t piece_bytes,
        Duration long_enough = kLongEnough);
  ~Probe();  // after the transport has stopped
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;
  void Open();

  // `done` gets the GB/s (0 when it could not be measured), once, unless the peer goes down before.
  void Start(transport::PeerId peer, std::function<void(double)> done);
  void OnPeerDown(transport::PeerId peer) { runs_.erase(peer); }
  // Says, in words, what is still awaited of a peer; empty when nothing is.
  std::string Unfinished(transport::PeerId peer) const;
  // A fetch that is not the probe's: false.
  bool OnFetchDone(transport::FetchId fetch, FetchStatus status);
  // A piece that is not the probe's: nullopt.
  std::optional<transport::ServeAnswer> OnFetch(const PieceName& name) const;

 private:
  struct Run {
    int started = 0;
    int completed = 0;
    Time began;
    Time from;  // the rate is that of the pieces since
    std::function<void(double)> done;
  };
  void Next(transport::PeerId peer);
  void Finish(transport::PeerId peer, double gb_per_second);

  transport::Transport& transport_;
  ExchangeMemory& memory_;
  const std::uint64_t piece_bytes_;
  const Duration long_enough_;
  std::byte* pieces_ = nullptr;  // two: the first one is served, the second one fetched into
  std::optional<transport::RegionId> region_;
  std::map<transport::PeerId, Run> runs_;
  std::map<transport::FetchId, transport::PeerId> fetches_;
};

}  // namespace lockstep::worker
