// The rescue file: parameters and optimizer state that a worker has saved in the run directory,
// when no coordinator took over (worker/runtime/rescue.h). With the journal, which has the rest of
// the job's state, it becomes a checkpoint. docs/reference/run-directory.md has its form.
//
// Only what the journal tells of is believed, by the rule of Reattachment: term, round and attempt
// are those of an entry. Control thread only, before the job begins.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/record/run_directory.h"

namespace lockstep::coordinator {

constexpr const char* kRescueFile = "rescue.safetensors";

struct Rescue {
  bool used = false;  // or of no use any more
  std::string line;   // for people; empty: there is no rescue file
};

// Makes a checkpoint of the rescue file, where there is one, and removes it; it also removes one
// that is no newer than the newest checkpoint. One that cannot be used is left as it is, and the
// line says why. `keep`: how many checkpoints stay.
Rescue AdoptRescue(RunDirectory& directory, std::uint32_t keep);

}  // namespace lockstep::coordinator
