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
        costs(context),
        own(context, buffers, peers, rounds, costs) {}

  worker::Context context;
  worker::Buffers buffers;
  worker::Peers peers;        // without members
  worker::LiveRounds rounds;  // without owners: OwnWork announces nothing
  worker::CostReport costs;
  worker::OwnWork own;
  worker::Actions actions;  // actions being carried out
};

}  // namespace lockstep::simulate
