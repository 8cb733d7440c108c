// Keeps who uses which buffer now. A buffer may be written anew only when nobody does: no send that
// a peer was served, no fetch into it, no operation that reads or writes it (I4).
//
// In: buffers that are taken and given back, and the beginning and end of each use. Out: whether a
// buffer is in use, and a free one of a pool. Where a peer that does not read pins the one that is
// needed, also the end of its connection (I6: nobody waits for it).
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "worker/core/context.h"

namespace lockstep::worker {

// Names these slices, in this order: never 0, and another number for others, but by rare chance.
std::uint64_t ShapeOf(std::span<const Slice> slices);

// Taking and using are two things. A part of the core takes a buffer for what it wants to put
// there, and releases it when that is needed no longer. Meanwhile and afterwards sends, fetches and
// operations use it, each with a beginning and an end that the shell reports. A buffer is taken
// again when it is neither taken nor used. Staging and state buffers belong to one part for good:
// that one asks InUse before it writes there on behalf of something new.
class Buffers {
 public:
  explicit Buffers(Context& context) : context_(context) {}

  // Takes a buffer of a pool (kContribution, kSum, kTaken, kStateOut) that nobody uses. When all
  // that are not taken are still being sent, the connections that hold one of them are closed; it
  // can be taken once they have ended.
  std::optional<BufferId> Take(BufferKind kind);
  // Its content is needed no longer; uses may still be under way.
  void Release(const BufferId& buffer);

  // Nobody uses the buffer, and its content, but for `kept`, is needed no longer. From here on only
  // slices of this shape (ShapeOf), in which `kept` lies, are written of it. Where other ones were,
  // the rest is given back first.
  void Fit(const BufferId& buffer, std::uint64_t shape, std::span<const FloatRange> kept = {});
  // It is written elsewhere, too, for once: the next Fit gives it back.
  void Spread(const BufferId& buffer) { fits_[buffer] = 0; }

  struct Served {
    MemberId peer;
    BufferRange from;
    Time since;  // that it was asked for
  };
  // A send that a peer asked for. The cookie is for Unserve, which tells what it was.
  std::uint64_t Serve(const MemberId& peer, const BufferRange& from);
  Served Unserve(std::uint64_t cookie);
  void BeginFetch(const BufferId& into) { ++fetches_[into]; }
  void EndFetch(const BufferId& into);
  void BeginOp(std::uint64_t op, std::vector<BufferId> uses);
  void EndOp(std::uint64_t op);

  bool InUse(const BufferId& buffer) const;
  bool ServedOf(const BufferId& buffer) const;
  // Of a pool: whoever took it has not given it back.
  bool Taken(const BufferId& buffer) const { return taken_.contains(buffer); }
  bool Operating() const { return !ops_.empty(); }
  std::size_t pins() const { return serves_.size(); }

  void CheckInvariants() const;

 private:
  Context& context_;
  // Uses may outlive the taking: what was given back while it is read is free once it is not.
  std::set<BufferId> taken_;
  std::uint64_t next_cookie_ = 1;
  std::map<std::uint64_t, Served> serves_;
  std::map<BufferId, std::uint32_t> fetches_;  // under way, never 0
  std::map<std::uint64_t, std::vector<BufferId>> ops_;
  std::set<MemberId> closing_;  // and still served, so each is closed once
  // Of those that Fit or Spread were called for. 0: written in more than one shape.
  std::map<BufferId, std::uint64_t> fits_;
};

}  // namespace lockstep::worker
