// The fetches of this worker: one queue for each peer, at most a window of it under way, sums and
// state before contributions. It hands what arrives back to the part that wanted it.
//
// In: wants, cancellations, fetches that end, peers that go. Out: Fetch and GiveUpFetch. It decides
// what is asked for next. That is all of the flow control there is, because nothing bulky moves
// that was not asked for. Incast is the receiver's, here, and a stopped peer pins no more than its
// window.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "worker/core/buffer_leases.h"

namespace lockstep::worker {

// Of a copy of state that takes long the coordinator is told so often that it gets on.
inline constexpr std::uint64_t kToldFloats = std::uint64_t{16} << 20;

struct Want {
  MemberId peer;
  PieceName piece;
  BufferRange to;
};

// There are two queues for each peer, not one by priority. In each the pieces keep their order, so
// what was announced first comes first. Nothing urgent waits for more than the window that is under
// way. Bytes under way from one peer are bounded by fetch_window * piece_bytes, in all by that
// times the peers (I7).
class Fetcher {
 public:
  Fetcher(Context& context, Buffers& buffers) : context_(context), buffers_(buffers) {}

  // Cuts `to` into pieces and queues them. `offset` is where the range begins at the server, in
  // floats. The pieces keep their order.
  void Add(const MemberId& peer, const PieceName& name, const BufferRange& to,
           std::uint64_t offset);

  // Drops what is queued and returns it; gives up what is under way, which ends in OnFetchDone.
  std::vector<Want> Cancel(const std::function<bool(const Want&)>& unwanted);

  struct Done {
    Want want;
    // The bytes are in place. A piece that was cancelled never is, even if its bytes came.
    bool ok = false;
    bool cancelled = false;
    FetchStatus status = FetchStatus::kOk;
  };
  Done OnFetchDone(const event::FetchDone& done);

  // Drops and returns what was queued for the peer; what is under way ends by itself.
  std::vector<Want> OnPeerDown(const MemberId& peer);

  // Fills the windows, peer after peer in turns.
  void Pump();

  std::size_t under_way() const { return under_way_.size(); }
  std::size_t queued() const;
  void CheckInvariants() const;

 private:
  // Until its FetchDone it may land, also when it was cancelled: its buffer stays in use.
  struct UnderWay {
    Want want;
    bool cancelled = false;
  };
  struct Queue {
    std::array<std::deque<Want>, 2> by_urgency;
    std::uint32_t under_way = 0;  // of under_way_, from this peer; at most the window
  };
  Context& context_;
  Buffers& buffers_;
  std::map<MemberId, Queue> queues_;
  // Emptied by each Pump: whoever has a place in its window and a want is served before it ends.
  std::set<MemberId> look_at_;  // something may be fetched from these
  std::map<std::uint64_t, UnderWay> under_way_;
  std::uint64_t next_fetch_ = 1;
};

}  // namespace lockstep::worker
