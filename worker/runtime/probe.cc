#include "worker/runtime/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace lockstep::worker {
namespace {

double Rate(std::size_t bytes, Duration took) {
  return static_cast<double>(bytes) / std::max(Seconds(took), 1e-9) / 1e9;
}

// By a kernel that reads it, since operations are the reduction thread's; the first pass pays for
// what comes with a new mapping.
double MeasureOnDevice(ExchangeMemory& memory, const std::byte* data, std::size_t bytes) {
  Time from;
  for (int pass = 0; pass < 2; ++pass) {
    from = MonotonicNow();
    memory.AllFinite(reinterpret_cast<const float*>(data), bytes / sizeof(float));
  }
  return Rate(bytes, MonotonicNow() - from);
}

}  // namespace

std::string RateText(double gb_per_second) {
  if (gb_per_second <= 0) return "not measured";
  if (gb_per_second >= 0.1) return fmt::format("{:.3g} GB/s", gb_per_second);
  return fmt::format("{:.3g} MB/s", gb_per_second * 1e3);
}

double MeasureMapped(ExchangeMemory& memory, const std::byte* data, std::size_t bytes) {
  if (!memory.on_host()) return MeasureOnDevice(memory, data, bytes);
  const Time from = MonotonicNow();
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i + sizeof sum <= bytes; i += sizeof sum) {
    std::uint64_t word;
    std::memcpy(&word, data + i, sizeof word);
    sum += word;
  }
  volatile std::uint64_t keep = sum;  // so that the pass is made
  (void)keep;
  return Rate(bytes, MonotonicNow() - from);
}

Probe::Probe(transport::Transport& transport, ExchangeMemory& memory, std::uint64_t piece_bytes,
             Duration long_enough)
    : transport_(transport),
      memory_(memory),
      piece_bytes_(std::min({std::uint64_t{kPieceBytes}, piece_bytes,
                             std::uint64_t{transport.capabilities().max_piece_bytes}})),
      long_enough_(long_enough) {}

Probe::~Probe() {
  if (pieces_ != nullptr) memory_.Free(pieces_, 2 * kPieceBytes);
}

void Probe::Open() {
  if (pieces_ != nullptr) return;
  const auto pieces = memory_.Allocate(2 * kPieceBytes);
  if (!pieces) return;
  pieces_ = *pieces;
  auto region = transport_.Register(
      memory_.on_host() ? transport::MemoryKind::kHost : transport::MemoryKind::kCuda, pieces_,
      2 * kPieceBytes);
  if (region) region_ = *region;
}

void Probe::Start(transport::PeerId peer, std::function<void(double)> done) {
  Open();
  if (!region_) return done(0);
  const Time now = MonotonicNow();
  runs_[peer] = Run{.began = now, .from = now, .done = std::move(done)};
  Next(peer);
}

void Probe::Next(transport::PeerId peer) {
  Run& run = runs_.at(peer);
  const PieceName name{.kind = kPieceKind, .bytes = piece_bytes_};
  ++run.started;
  auto fetch = transport_.Fetch(peer, name, {*region_, kPieceBytes, piece_bytes_});
  if (!fetch) return Finish(peer, 0);
  fetches_.emplace(*fetch, peer);
}

void Probe::Finish(transport::PeerId peer, double gb_per_second) {
  auto done = std::move(runs_.at(peer).done);
  runs_.erase(peer);
  done(gb_per_second);
}

bool Probe::OnFetchDone(transport::FetchId fetch, FetchStatus status) {
  const auto found = fetches_.find(fetch);
  if (found == fetches_.end()) return false;
  const transport::PeerId peer = found->second;
  fetches_.erase(found);
  const auto run = runs_.find(peer);
  if (run == runs_.end() || status == FetchStatus::kPeerDown) return true;
  if (status != FetchStatus::kOk) {
    Finish(peer, 0);
    return true;
  }
  Run& so_far = run->second;
  const Time now = MonotonicNow();
  const bool first = ++so_far.completed == 1;
  if (so_far.completed == kPieces || now - so_far.began >= long_enough_) {
    const auto counted = static_cast<std::size_t>(first ? 1 : so_far.completed - 1);
    Finish(peer, Rate(counted * piece_bytes_, now - so_far.from));
    return true;
  }
  if (first) so_far.from = now;  // the first one paid for registration and page faults
  Next(peer);
  return true;
}

std::string Probe::Unfinished(transport::PeerId peer) const {
  const auto run = runs_.find(peer);
  if (run == runs_.end()) return {};
  return fmt::format(
      "it is connected, but {} KiB that it should send have not arrived within {:.1f} s: the link "
      "is too slow, or loses large packets (its ends differ in MTU)",
      (static_cast<std::size_t>(run->second.completed) + 1) * piece_bytes_ >> 10,
      Seconds(MonotonicNow() - run->second.began));
}

std::optional<transport::ServeAnswer> Probe::OnFetch(const PieceName& name) const {
  if (name.kind != kPieceKind) return std::nullopt;
  transport::ServeAnswer answer;
  if (region_ && name.bytes <= piece_bytes_) {
    answer.have = true;
    answer.slice = {*region_, 0, name.bytes};
    answer.cookie = ~std::uint64_t{0};
  }
  return answer;
}

}  // namespace lockstep::worker
