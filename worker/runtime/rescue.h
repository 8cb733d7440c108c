// The rescue checkpoint: parameters and optimizer state that a worker holds, saved in the run
// directory when no coordinator takes over. A coordinator that is started there later makes a
// checkpoint of it (coordinator/journal/rescue.h); docs/reference/run-directory.md has the form.
//
// Workers that reach the directory agree by a lock on a file in it: one writes, and the next one
// finds that the file is there. A worker whose parameters are newer writes it anew. The file is
// there as a whole or not at all.
//
// With optimizer.replicas each worker adds the shards that it holds to a partial file of that
// version. The worker that brings the last one makes it the rescue file. All workers have to bring
// the same version: the coordinator may have died before each holder heard of its last decision,
// which the journal tells (DecidedInJournal).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/messages.h"
#include "base/result.h"
#include "worker/layout/layout.h"
#include "worker/memory/exchange_memory.h"

namespace lockstep::worker {

// With optimizer.replicas: a shard that this worker holds.
struct RescueShard {
  std::uint32_t shard = 0;
  std::vector<FloatRange> ranges;  // of each tensor
};

struct RescueState {
  std::string run_dir;
  std::string run_id;  // of its job
  WorkerId worker;     // that saves
  HeldParameters held;
  std::uint64_t parameters = 0;          // in each tensor
  std::vector<const float*> tensors;     // the parameters, then the optimizer's state
  std::vector<std::string> state_names;  // of all but the first
  ExchangeMemory* memory = nullptr;      // where they are
  bool state_on_host = false;            // all but the first are in the host's memory
  std::vector<RescueShard> shards = {};  // with optimizer.replicas, at least one; else none
  std::uint32_t shards_in_all = 0;
};

// True: the launcher has said in the run directory that no other coordinator follows.
bool NobodyComes(const std::string& run_dir);

// This worker reaches the run directory of that job.
bool IsRunDirectoryOf(const std::string& run_dir, const std::string& run_id);

// The state of this job, by its run directory.
enum class JobEnd : std::uint8_t {
  kUnknown,    // it goes on, or this worker does not reach that directory
  kEnded,      // without this worker; what it holds may be newer than the last checkpoint
  kCompleted,  // nobody needs what this worker holds
};
JobEnd EndOfJob(const std::string& run_dir, const std::string& run_id);

// With optimizer.replicas: the attempt that the dead coordinator decided on last, as the journal in
// the run directory has it. Nullopt: this worker does not reach the journal of this job, its last
// whole line is damaged, or that line tells of no decision.
std::optional<HeldParameters> DecidedInJournal(const std::string& run_dir,
                                               const std::string& run_id);

// Blocks: for the write, and while another worker writes. Nobody changes the tensors meanwhile.
// Returns one line on where the file is, and who has written it; an error is one line on why this
// worker has saved nothing.
Result<std::string> SaveRescue(const RescueState& state);

}  // namespace lockstep::worker
