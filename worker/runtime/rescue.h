// The rescue checkpoint: parameters and optimizer state that a worker holds, saved in the run
// directory when no coordinator takes over. A coordinator that is started there later makes a
// checkpoint of it (coordinator/journal/rescue.h); docs/reference/run-directory.md has the form.
//
// Workers that reach the directory agree by a lock on a file in it: one writes, and the next one
// finds that the file is there. A worker whose parameters are newer writes it anew. The file is
// there as a whole or not at all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/messages.h"
#include "base/result.h"
#include "worker/memory/exchange_memory.h"

namespace lockstep::worker {

struct RescueState {
  std::string run_dir;
  std::string run_id;  // of its job
  WorkerId worker;     // that saves
  HeldParameters held;
  std::uint64_t parameters = 0;          // in each tensor
  std::vector<const float*> tensors;     // the parameters, then the optimizer's state; in `memory`
  std::vector<std::string> state_names;  // of all but the first
  ExchangeMemory* memory = nullptr;
};

// True: the launcher has said in the run directory that no other coordinator follows.
bool NobodyComes(const std::string& run_dir);

// Blocks: for the write, and while another worker writes. Nobody changes the tensors meanwhile.
// Returns one line on where the file is, and who has written it; an error is one line on why this
// worker has saved nothing.
Result<std::string> SaveRescue(const RescueState& state);

}  // namespace lockstep::worker
