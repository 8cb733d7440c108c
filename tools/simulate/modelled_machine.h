// The real part of a modelled worker: OwnWork, and as much of the core as it needs.
#pragma once

#include <utility>

#include "tools/simulate/modelled_worker.h"
#include "worker/core/cost_report.h"

namespace lockstep::simulate {

struct ModelledWorker::Machine {
  Machine(worker::MachineConfig config, const worker::Layout& layout)
      : context(std::move(config), layout),
        buffers(context),
        peers(context),
        rounds(context),
        own(context, buffers, peers, rounds),
        costs(context) {}

  worker::Context context;
  worker::Buffers buffers;
  worker::Peers peers;        // without members
  worker::LiveRounds rounds;  // without owners: OwnWork announces nothing
  worker::OwnWork own;
  worker::CostReport costs;
  worker::Actions actions;  // actions being carried out
};

}  // namespace lockstep::simulate
