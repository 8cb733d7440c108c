#include "coordinator/core/lease.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/overloaded.h"

namespace lockstep::coordinator {

void Lease::Step(Time now, const Event& event, std::vector<Action>* out) {
  if (state_ == State::kOver) return;
  if (state_ == State::kLeading && now >= leads_until()) {
    return End(trouble_.empty() ? "etcd has not been asked in time" : trouble_, out);
  }
  if (std::holds_alternative<TimerFired>(event)) return OnTimer(now, out);
  if (std::holds_alternative<Ended>(event)) {
    state_ = State::kOver;
    if (id_ != 0) out->push_back(Revoke{id_});
    return;
  }
  if (!std::holds_alternative<Resigned>(event)) {
    LOCKSTEP_CHECK(asked_, "an answer of etcd to no question");
    asked_ = false;
    trouble_.clear();
  }
  std::visit(Overloaded{
                 [](const TimerFired&) {},
                 [&](const Absent&) {
                   holder_.clear();
                   Ask(now, Grant{ttl_}, out);
                 },
                 [&](const HeldBy& e) {
                   holder_ = e.holder;
                   LookAgain(now, out);
                 },
                 [&](const Granted& e) {
                   id_ = e.id;
                   ttl_ = e.ttl;
                   confirmed_ = sent_;
                   state_ = State::kTaking;
                   Ask(now, Take{id_}, out);
                 },
                 [&](const Taken&) {
                   if (now >= leads_until()) return LookAgain(now, out);
                   state_ = State::kLeading;
                   out->push_back(Lead{});
                   out->push_back(SetTimer{std::min(now + pause(), leads_until())});
                 },
                 [&](const Kept&) {
                   confirmed_ = sent_;
                   out->push_back(SetTimer{std::min(sent_ + pause(), leads_until())});
                 },
                 [&](const Gone&) {
                   if (state_ == State::kLeading) return End("etcd has let it expire", out);
                   LookAgain(now, out);
                 },
                 [&](const Failed& e) {
                   trouble_ = e.why;
                   if (state_ != State::kLeading) return LookAgain(now, out);
                   out->push_back(SetTimer{std::min(now + pause(), leads_until())});
                 },
                 [&](const Resigned&) { LookAgain(now, out); },
                 [](const Ended&) {},
             },
             event);
}

void Lease::OnTimer(Time now, std::vector<Action>* out) {
  if (asked_) return out->push_back(SetTimer{leads_until()});
  if (state_ == State::kLeading) {
    Ask(now, Keep{id_}, out);
    // The answer sets it again; without one the lease ends by then.
    out->push_back(SetTimer{leads_until()});
  } else {
    Ask(now, Look{}, out);
  }
}

void Lease::Ask(Time now, Action request, std::vector<Action>* out) {
  sent_ = now;
  asked_ = true;
  out->push_back(std::move(request));
}

// A lease without the key is of no use to anybody.
void Lease::LookAgain(Time now, std::vector<Action>* out) {
  if (id_ != 0) out->push_back(Revoke{std::exchange(id_, 0)});
  state_ = State::kLooking;
  out->push_back(SetTimer{now + pause()});
}

void Lease::End(std::string why, std::vector<Action>* out) {
  state_ = State::kOver;
  out->push_back(StopLeading{std::move(why)});
}

}  // namespace lockstep::coordinator
