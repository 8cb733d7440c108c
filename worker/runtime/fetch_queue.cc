#include "worker/runtime/fetch_queue.h"

#include <algorithm>
#include <utility>

namespace lockstep::worker {
namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(1);
constexpr Duration kLongestPause = std::chrono::milliseconds(32);

}  // namespace

void FetchQueue::Fetch(transport::PeerId peer, std::uint64_t number, const PieceName& name,
                       const transport::Slice& to) {
  const Waiting fetch{number, name, to};
  const auto queue = queues_.find(peer);
  if (queue != queues_.end()) {
    queue->second.waiting.push_back(fetch);
  } else if (!TryNow(peer, fetch)) {
    queues_[peer] = {{fetch}, ++last_queue_, MonotonicNow()};
    LookAgain(peer, last_queue_, kFirstPause);
  }
}

bool FetchQueue::TryNow(transport::PeerId peer, const Waiting& fetch) {
  const auto id = transport_.Fetch(peer, fetch.name, fetch.to);
  if (id) {
    under_way_.emplace(*id, UnderWay{fetch.number, peer});
    by_number_.emplace(fetch.number, *id);
  } else if (id.error().code == ErrorCode::kUnavailable) {
    return false;
  } else {
    ReportLater(fetch.number, FetchStatus::kPeerDown);
  }
  return true;
}

void FetchQueue::TryWaiting(transport::PeerId peer) {
  const auto queue = queues_.find(peer);
  if (queue == queues_.end()) return;
  auto& waiting = queue->second.waiting;
  while (!waiting.empty() && TryNow(peer, waiting.front())) {
    waiting.pop_front();
    queue->second.moved = MonotonicNow();
  }
  if (waiting.empty()) queues_.erase(queue);
}

void FetchQueue::LookAgain(transport::PeerId peer, std::uint64_t queue_id, Duration pause) {
  transport_.PostAt(MonotonicNow() + pause, [this, peer, queue_id, pause] {
    TryWaiting(peer);
    const auto queue = queues_.find(peer);
    if (queue == queues_.end() || queue->second.id != queue_id) return;
    if (MonotonicNow() - queue->second.moved >= patience_) {
      transport_.Close(peer, "it does not answer what it was asked for");  // OnPeerDown follows
      return;
    }
    LookAgain(peer, queue_id, std::min(2 * pause, kLongestPause));
  });
}

void FetchQueue::GiveUp(std::uint64_t number) {
  if (const auto found = by_number_.find(number); found != by_number_.end()) {
    return transport_.GiveUp(found->second);
  }
  for (auto& [peer, queue] : queues_) {
    const auto at = std::find_if(queue.waiting.begin(), queue.waiting.end(),
                                 [number](const Waiting& w) { return w.number == number; });
    if (at == queue.waiting.end()) continue;
    queue.waiting.erase(at);
    ReportLater(number, FetchStatus::kGivenUp);
    return;  // an empty queue goes with the next look
  }
}

bool FetchQueue::OnFetchDone(transport::FetchId fetch, FetchStatus status) {
  const auto found = under_way_.find(fetch);
  if (found == under_way_.end()) return false;
  const UnderWay done = found->second;
  under_way_.erase(found);
  by_number_.erase(done.number);
  // What was given up ends here without the peer's doing.
  if (const auto queue = queues_.find(done.peer);
      queue != queues_.end() && status != FetchStatus::kGivenUp) {
    queue->second.moved = MonotonicNow();
  }
  if (status != FetchStatus::kPeerDown) TryWaiting(done.peer);
  report_(done.number, status);
  return true;
}

void FetchQueue::OnPeerDown(transport::PeerId peer) {
  const auto queue = queues_.find(peer);
  if (queue == queues_.end()) return;
  const auto waiting = std::move(queue->second.waiting);
  queues_.erase(queue);
  for (const Waiting& fetch : waiting) report_(fetch.number, FetchStatus::kPeerDown);
}

void FetchQueue::ReportLater(std::uint64_t number, FetchStatus status) {
  transport_.Post([this, number, status] { report_(number, status); });
}

std::size_t FetchQueue::waiting(transport::PeerId peer) const {
  const auto queue = queues_.find(peer);
  return queue == queues_.end() ? 0 : queue->second.waiting.size();
}

}  // namespace lockstep::worker
