#include "worker/core/fetcher.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace lockstep::worker {

// In pieces, so that a window is a bound in bytes, and so that something urgent waits for one piece
// at most.
void Fetcher::Add(const MemberId& peer, const PieceName& name, const BufferRange& to,
                  std::uint64_t offset) {
  LOCKSTEP_CHECK(to.range.count > 0, "nothing is fetched from {}", Name(peer));
  LOCKSTEP_CHECK(to.buffer.kind == BufferKind::kStaging || to.buffer.kind == BufferKind::kSum ||
                     to.buffer.kind == BufferKind::kTaken || to.buffer.kind == BufferKind::kState,
                 "I4: a fetch into a buffer that is written or served otherwise");
  look_at_.insert(peer);
  const bool urgent = name.kind != static_cast<std::uint32_t>(PieceKind::kContribution);
  std::deque<Want>& queue = queues_[peer].by_urgency[urgent ? 0 : 1];
  const std::uint64_t number = NumberBytes(to.buffer.kind, context_.layout.number_bytes());
  for (const FloatRange& cut : CutPieces(to.range, context_.config.piece_bytes, number)) {
    Want want{peer, name, {to.buffer, cut}};
    want.piece.offset = (offset + (cut.first - to.range.first)) * number;
    want.piece.bytes = cut.count * number;
    queue.push_back(want);
  }
}

// What is queued is simply not asked for. What is under way may land until its FetchDone, whatever
// the transport makes of GiveUp, so it keeps its place in the window and its hold on the buffer
// (I4).
std::vector<Want> Fetcher::Cancel(const std::function<bool(const Want&)>& unwanted) {
  std::vector<Want> dropped;
  for (auto& [peer, queue] : queues_) {
    for (auto& wants : queue.by_urgency) {
      std::copy_if(wants.begin(), wants.end(), std::back_inserter(dropped), unwanted);
      std::erase_if(wants, unwanted);
    }
  }
  for (auto& [id, fetch] : under_way_) {
    if (fetch.cancelled || !unwanted(fetch.want)) continue;
    fetch.cancelled = true;
    context_.Emit(action::GiveUpFetch{id});
  }
  return dropped;
}

// Exactly once for each Fetch, by the transport's contract.
Fetcher::Done Fetcher::OnFetchDone(const event::FetchDone& done) {
  const auto at = under_way_.find(done.fetch);
  LOCKSTEP_CHECK(at != under_way_.end(), "fetch {} ended twice", done.fetch);
  Done result;
  result.want = at->second.want;
  result.cancelled = at->second.cancelled;
  result.status = done.status;
  result.ok = !result.cancelled && done.status == FetchStatus::kOk;
  under_way_.erase(at);
  buffers_.EndFetch(result.want.to.buffer);
  Queue& queue = queues_[result.want.peer];
  LOCKSTEP_CHECK(queue.under_way > 0, "a fetch from {} that was not under way ended",
                 Name(result.want.peer));
  --queue.under_way;
  look_at_.insert(result.want.peer);
  return result;
}

// The transport ends what is under way before it reports the peer, or soon after; both orders are
// fine here.
std::vector<Want> Fetcher::OnPeerDown(const MemberId& peer) {
  const auto at = queues_.find(peer);
  if (at == queues_.end()) return {};
  std::vector<Want> dropped;
  for (auto& wants : at->second.by_urgency) {
    std::move(wants.begin(), wants.end(), std::back_inserter(dropped));
    wants.clear();
  }
  if (at->second.under_way == 0) queues_.erase(at);
  return dropped;
}

// In turns, so that a peer with much to fetch does not starve the others; sums and state first,
// because everybody waits for those, and contributions only for the slowest.
void Fetcher::Pump() {
  while (!look_at_.empty()) {
    for (auto next = look_at_.begin(); next != look_at_.end();) {
      const MemberId peer = *next;
      Queue& queue = queues_[peer];
      auto& wants = queue.by_urgency[queue.by_urgency[0].empty() ? 1 : 0];
      if (queue.under_way >= context_.config.fetch_window || wants.empty()) {
        next = look_at_.erase(next);
        continue;
      }
      ++next;
      LOCKSTEP_CHECK(wants.front().peer == peer, "a fetch from {} is in the queue of {}",
                     Name(wants.front().peer), Name(peer));
      const std::uint64_t id = next_fetch_++;
      context_.Emit(action::Fetch{id, peer, wants.front().piece, wants.front().to});
      buffers_.BeginFetch(wants.front().to.buffer);
      under_way_[id] = {wants.front(), false};
      wants.pop_front();
      ++queue.under_way;
    }
  }
}

// For people; what decides looks at one peer's queue.
std::size_t Fetcher::queued() const {
  std::size_t queued = 0;
  for (const auto& [peer, queue] : queues_) {
    queued += queue.by_urgency[0].size() + queue.by_urgency[1].size();
  }
  return queued;
}

void Fetcher::CheckInvariants() const {
  std::size_t under_way = 0;
  for (const auto& [peer, queue] : queues_) {
    LOCKSTEP_CHECK(queue.under_way <= context_.config.fetch_window, "I7: {} fetches from {}",
                   queue.under_way, Name(peer));
    under_way += queue.under_way;
  }
  LOCKSTEP_CHECK(under_way == under_way_.size(), "{} fetches under way, {} counted",
                 under_way_.size(), under_way);
  LOCKSTEP_CHECK(look_at_.empty(), "a peer's window was not filled");
}

}  // namespace lockstep::worker
