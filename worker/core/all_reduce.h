// The all-reduce of one attempt's sums, on one worker: brings all shards here. There are two ways,
// and the commit says which one:
// - direct_sums.cc: each owner sums all parts of its shard (reduce-scatter), and the others fetch
//   it from there or read it in place (all-gather);
// - routed_sums.cc: partial sums are passed on from worker to worker, and whole ones come back, in
//   rings or trees (base/routes.h).
//
// Once a holder of all shards is named, neither is asked for more (round_sums.h).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "worker/core/heard_sums.h"
#include "worker/core/inputs.h"
#include "worker/core/own_work.h"
#include "worker/core/sum_shards.h"

namespace lockstep::worker {

// The parts that the sums work with; all of them outlive the sums.
struct SumsContext {
  Context& context;
  Buffers& buffers;
  Fetcher& fetcher;
  const Peers& peers;
  Inputs& inputs;
  const OwnWork& own;
  const HeardSums& heard;
};

class AllReduce {
 public:
  AllReduce(const SumsContext& with, const msg::Commit& commit, SumShards& sums)
      : with_(with), context_(with.context), commit_(commit), sums_(sums) {}
  virtual ~AllReduce() = default;

  // Does all that can be done by now.
  virtual void Update() = 0;
  // True when this worker stands in for the owner from here on.
  [[nodiscard]] virtual bool OnHedge(const MemberId&, const MemberId&) { return false; }
  // An error: the peer said what cannot be.
  virtual Status OnPassed(const MemberId&, const PassedOn&) const {
    return Error{ErrorCode::kInvalid, "it passes on what is direct"};
  }
  // True when the operation was of these sums.
  virtual bool OnOpDone(const event::OpDone& done) = 0;
  virtual void OnPeerUp(const MemberId& peer) = 0;
  virtual void OnPeerDown(const MemberId&) {}
  // Of a partial sum.
  virtual void OnFetchDone(const Fetcher::Done&) {}
  virtual void OnDropped(const Want&) {}
  virtual std::optional<BufferRange> FindPartial(const PieceName&) const { return std::nullopt; }

  // An operation writes where the shard lies.
  virtual bool Writes(const SumShard& shard) const = 0;
  // From whom the shard comes; this worker: it is made here.
  virtual MemberId SourceOf(const SumShard& shard) const = 0;
  // Names, for people, what the shard waits for beside its owner.
  virtual std::string Missing(const SumShard& shard) const = 0;

  virtual void CheckInvariants() const = 0;

 protected:
  const SumsContext& with_;
  Context& context_;
  const msg::Commit& commit_;
  SumShards& sums_;
};

// All outlive it.
std::unique_ptr<AllReduce> MakeDirectSums(const SumsContext& with, const msg::Commit& commit,
                                          SumShards& sums);
std::unique_ptr<AllReduce> MakeRoutedSums(const SumsContext& with, const msg::Commit& commit,
                                          SumShards& sums);

// The pieces of a shard that are passed on at once, in the order in which they are. All cut it
// alike: pieces are so small that a long way is filled soon, and not so small that messages take
// longer than bytes.
std::vector<Slice> RoutedPieces(const Layout& layout, const std::vector<Slice>& shard,
                                std::size_t contributors, std::uint64_t piece_bytes);

}  // namespace lockstep::worker
