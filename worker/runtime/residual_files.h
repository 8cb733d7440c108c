// Residuals beside checkpoints (checkpoint.residuals). Each worker that reaches the run directory
// saves there what compression keeps back. The same worker reads it when the job is resumed from
// that checkpoint. docs/reference/run-directory.md has the form.
//
// Due, StartedFrom: any thread. The others: the compute thread. A file is written by a thread of
// its own, from a copy, one at a time. Errors cost a warning, once: no job ends for them.
#pragma once

#include <cstdint>
#include <future>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "worker/memory/residual.h"

namespace lockstep::worker {

class ResidualFiles {
 public:
  struct Place {
    std::string run_dir;
    std::string run_id;  // of the job whose directory that is
    WorkerId worker;
  };
  explicit ResidualFiles(Place place) : place_(std::move(place)) {}
  ~ResidualFiles();

  // The job has the same directory, and this worker perhaps another number.
  void MoveTo(Place place);
  // A checkpoint is made of the state after `round`. Only when the next work begins it is known
  // what is kept then.
  void Due(RoundId round);
  // The parameters come from the checkpoint after `round`.
  void StartedFrom(RoundId round);

  // A work begins, and `residual` knows which parts are in the parameters.
  void OnWork(Residual* residual);
  // No further work: waits until all is written.
  void OnEnd(const Residual& residual);

 private:
  void Save(RoundId round, const Residual& residual, bool wait);
  void Load(RoundId round, Residual* residual);
  void Warn(const std::string& what);

  std::mutex mutex_;
  Place place_;
  std::optional<RoundId> due_;
  std::optional<RoundId> started_from_;
  std::vector<float> copy_;  // of writing_, while it is valid
  std::future<Status> writing_;
  bool warned_ = false;
};

// One file. To load it, `values` has as many as it must have; after an error they are undefined.
Status SaveResidual(const ResidualFiles::Place& place, RoundId round,
                    std::span<const float> values);
// kNotFound: there is none. kInvalid: it is another one's, or damaged.
Status LoadResidual(const ResidualFiles::Place& place, RoundId round, std::span<float> values);

}  // namespace lockstep::worker
