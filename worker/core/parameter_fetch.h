// With optimizer.replicas (ZeRO-1): fetches the parameters of all shards from those who hold them,
// which is the all-gather behind an update.
//
// A version counts applied rounds: version v is the state before round v. Holders say which version
// of which shards they have (ParametersReady); a version is there once all shards are, of one
// holder or another that can be reached. Parameters are whole at each version, so who is late takes
// the newest one, whatever lies between.
//
// In: what holders say, fetches that end, the order to catch up. Out: fetches into the parameters,
// TakeParameters. That it is begun, and what follows, is decided in sharded_updates.cc.
//
// Invariants:
//   I1  what is taken is of one version; where a source is lost another one has the same bits.
//   I4  no fetch of a version that was given up is under way when another one is taken.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "base/result.h"
#include "worker/core/fetcher.h"
#include "worker/core/peers.h"

namespace lockstep::worker {

class ParameterFetch {
 public:
  struct Version {
    RoundId next;     // the first round that is not in it
    Attempt attempt;  // at the round before
    bool operator==(const Version&) const = default;
  };

  ParameterFetch(Context& context, Buffers& buffers, Fetcher& fetcher, const Peers& peers)
      : context_(context), buffers_(buffers), fetcher_(fetcher), peers_(peers) {}

  // An error: the peer said what cannot be.
  Status OnReady(const MemberId& peer, const ParametersReady& ready);
  // This worker itself holds that.
  void OnOwn(const ParametersReady& ready) { heard_[context_.config.self] = ready; }
  void ForgetOwn() { heard_.erase(context_.config.self); }
  // Returns what the holder said last; null: nothing that is of use.
  const ParametersReady* Heard(const MemberId& holder) const;

  template <class Visit>
  void ForEachHeard(Visit visit) const {
    for (const auto& [holder, ready] : heard_) visit(holder, ready);
  }
  // It does not answer the coordinator: what it has up to that version, others go to who else has
  // it, if anybody.
  void PassOver(const MemberId& holder, RoundId version);
  // How often that was said of it, of this version.
  std::uint32_t Silence(const MemberId& holder, RoundId version) const;
  // It has that version no longer.
  void Forget(const MemberId& holder, RoundId version);

  // The newest version that can be taken, of those from `least` on that `known` is true of.
  std::optional<Version> Newest(RoundId least,
                                const std::function<bool(const Version&)>& known) const;

  // While nobody else reads or writes the parameters, until it has ended.
  void Begin(const Version& version, std::uint64_t op);
  bool active() const { return op_.has_value(); }
  bool copying() const { return op_ && emitted_; }  // it cannot be given up any more
  bool giving_up() const { return op_ && giving_up_; }
  const Version& version() const { return version_; }
  // A source was lost and the version cannot be had any more: it may be given up for a newer one.
  bool Stuck() const;
  // True once nothing of it can land any more; else it is to be asked again.
  [[nodiscard]] bool GiveUp();
  void Update();
  void OnFetchDone(const Fetcher::Done& done);
  void OnDropped(const Want& want);
  void OnPeerDown(const MemberId& peer);
  // The last operation has ended. False: what it read has changed, and it is taken anew.
  [[nodiscard]] bool OnTaken(const event::OpDone& done);

  // --- catching up: commits are followed from one round on, and the version is to be at least that
  struct CatchUp {
    RoundId from;
    RoundId least;
    std::uint32_t order = 0;
  };
  void BeginCatchUp(const msg::CatchUp& order);
  // The committed round is open again.
  void FollowFrom(RoundId round) { catch_up_->from = round; }
  void EndCatchUp() { catch_up_.reset(); }
  const std::optional<CatchUp>& catch_up() const { return catch_up_; }
  // The last order, also when it is over; 0: none.
  std::uint32_t order() const { return order_; }

  void CheckInvariants() const;

 private:
  // Where a shard of this version is; the own memory before mapped, before what is fetched.
  std::optional<MemberId> SourceOf(std::uint32_t shard, std::uint64_t version) const;
  bool InPlace(const MemberId& holder) const {
    return holder == context_.config.self || peers_.Mapped(holder);
  }
  void Emit();

  Context& context_;
  Buffers& buffers_;
  Fetcher& fetcher_;
  const Peers& peers_;
  std::map<MemberId, ParametersReady> heard_;
  struct Silent {
    RoundId upto;
    std::uint32_t times = 0;
  };
  std::map<MemberId, Silent> silent_;

  Version version_;
  std::optional<std::uint64_t> op_;  // that ends it
  bool emitted_ = false;             // it is under way
  bool giving_up_ = false;
  FloatSet have_;   // fetched
  FloatSet asked_;  // fetches of it are queued or under way
  std::optional<CatchUp> catch_up_;
  std::uint32_t order_ = 0;
};

}  // namespace lockstep::worker
