// A modelled worker's compute thread: units take their time, and a sealed part is delivered.
#include <algorithm>
#include <utility>

#include "tools/simulate/modelled_machine.h"

namespace lockstep::simulate {

using worker::UnitQueue;
namespace action = worker::action;

void ModelledWorker::Settle() {
  worker::OwnWork& own = machine_->own;
  own.Update();
  TryApply();
  if (has_state_ && !applying_ && !finished_) {
    own.BeginIfPossible(next_, FindCommitted(next_) != nullptr);
  }
  worker::Actions& emitted = machine_->context.actions;
  while (!emitted.empty()) {
    std::swap(emitted, machine_->actions);
    for (worker::Action& action : machine_->actions) CarryOut(action);
    machine_->actions.clear();
  }
  const Time next = own.next_timer();
  if (next >= timer_) return;
  timer_ = next;
  host_->At(std::max(next, host_->now()), [this] {
    timer_ = kNever;
    machine_->context.now = host_->now();
    machine_->own.OnTimer();
    Settle();
  });
}

void ModelledWorker::CarryOut(worker::Action& action) {
  if (auto* tell = std::get_if<action::ToCoordinator>(&action)) {
    host_->Send(std::move(tell->message));
  } else if (const auto* start = std::get_if<action::StartWork>(&action)) {
    work_ = *start;
    Compute();
  } else if (std::holds_alternative<action::WakeCompute>(action)) {
    Compute();
  } else if (const auto* copy = std::get_if<action::TakeSnapshot>(&action)) {
    host_->After(exchange_->UpdateTime(), [this, op = copy->op] {
      machine_->context.now = host_->now();
      worker::event::OpDone done;
      done.op = op;
      machine_->own.OnOpDone(done);
      Settle();
    });
  } else if (std::holds_alternative<action::VoidWork>(action)) {
    if (!run_) return;
    const auto at = run_->LetsGo(host_->now());
    if (at) host_->At(*at, [this, take = takes_] { EndTake(take); });
  }
}

void ModelledWorker::Compute() {
  if (computing_ || !work_) return;
  take_ = machine_->own.queue().TakeNext();
  if (take_.kind == UnitQueue::TakeKind::kNone) return;
  computing_ = true;
  if (take_.kind != UnitQueue::TakeKind::kSeal) {
    run_.emplace(machine_->own.queue(), take_, self_.worker, work_->round, work_->epoch,
                 host_->now(), exchange_->compute, host_->random());
  }
  host_->At(run_ ? run_->end() : host_->now(), [this, take = ++takes_] { EndTake(take); });
}

// Ends the take, perhaps early because it is void; the later call finds another one.
void ModelledWorker::EndTake(std::uint64_t number) {
  if (!computing_ || number != takes_) return;
  machine_->context.now = host_->now();
  const UnitQueue::Take take = take_;
  bool seal = take.kind == UnitQueue::TakeKind::kSeal;
  if (run_ && (take.audited || take.kind == UnitQueue::TakeKind::kAudit)) {
    worker::event::UnitAudited audited{
        .work = take.work, .unit = run_->units().front(), .counts = take.audited, .gradient = {}};
    audited.gradient.emplace().sketch.resize(msg::kAuditCounters);
    machine_->own.OnUnitAudited(audited);
  }
  if (take.kind == UnitQueue::TakeKind::kAudit) {
    run_.reset();
  } else if (run_) {
    seal = machine_->own.queue().BeginSeal();
    machine_->own.OnRunDone(
        {take.work, take.part, run_->samples(), 0, run_->Timings(host_->now())});
    run_.reset();
  }
  computing_ = false;
  if (seal) Seal(take);
  Compute();
  Settle();
}

void ModelledWorker::Seal(const UnitQueue::Take& take) {
  const Time now = host_->now();
  const std::int64_t sealed_ns = now.time_since_epoch().count();
  if (machine_->own.queue().IsVoid()) {
    machine_->own.OnPartSealed({take.work, take.part, sealed_ns});
    return;
  }
  const Time delivered =
      owning_.direct ? exchange_->Deliver(self_.worker, host_->machine(), now) : now;
  bool witnessed = false;
  for (const WorkerId slot : exchange_->WitnessesOf(self_.worker)) {
    if (exchange_->Find(slot) == nullptr) continue;
    witnessed = true;
    // The witness reports it, with this one's part as it is now.
    exchange_->Find(slot)->host_->At(
        delivered, [witness = exchange_->Find(slot), round = work_->round,
                    part = ReceivedPart{self_, take.part}] { witness->OnDelivered(round, part); });
  }
  if (witnessed) {
    machine_->own.OnPartSealed({take.work, take.part, sealed_ns});
    return;
  }
  // Nobody reports the part to the coordinator later, so the coordinator learns of it at its
  // delivery.
  host_->At(delivered, [this, take, sealed_ns] {
    machine_->context.now = host_->now();
    machine_->own.OnPartSealed({take.work, take.part, sealed_ns});
    Settle();
  });
}

}  // namespace lockstep::simulate
