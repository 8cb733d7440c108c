// A model on a device with memory of its own. Where the exchange works there too, the model reads
// and writes the exchange's memory. For an exchange on the host's memory, the parameters are
// brought to the device when they have changed. Gradient sums stay on the device over the units of
// a contribution. They are brought to the host block by block during the last run's backward pass.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "worker/compute/compute.h"
#include "worker/models/model.h"

namespace lockstep::worker {

enum class ExchangeOn : bool { kHost, kDevice };

// One thread at a time may use it, as for the model. `compute` has a host_link; model and compute
// outlive it.
class StagedModel {
 public:
  StagedModel(Compute& compute, Model& model, ExchangeOn exchange);

  // The memory is on the side where the exchange works.
  struct Unit {
    std::span<const float> parameters;  // on the host they stay in a few places (HostLink::Pin)
    std::uint32_t version = 0;          // an equal version means equal parameters
    std::span<float> gradient;  // complete after the last run; on the host not written before
    bool first = false;         // the sum begins at zero
    // Called once, when the backward pass of the run's last samples begins to finish blocks:
    // whether the sum is then complete.
    std::function<bool()> last;
  };
  // Works like Model::TrainUnit. In the last run, `on_final` is called for each block, in finish
  // order, once its sum is in `unit.gradient`. `meanwhile` is called once while the device is at
  // work. When it returns, nothing reads `unit.parameters` or writes `unit.gradient` any more.
  TrainResult TrainUnit(const Unit& unit, const Batch& batch,
                        const std::function<void(std::uint32_t block)>& on_final,
                        const std::function<void()>& meanwhile, const std::atomic<bool>& cancelled);

  // Brings the sum to the host after a last run that was not known to be the last. Call it only
  // where the exchange works on the host's memory.
  void Collect(std::span<float> gradient);

  // The parameters may lie in other memory each time, and their earlier memory may be gone.
  EvalResult Evaluate(std::span<const float> parameters, std::uint32_t version, const Batch& batch);

 private:
  class Downloads;
  // The device's copy of parameters that lie on the host.
  struct Copy {
    DeviceArray<float> memory;
    std::optional<std::uint32_t> version;
  };
  TrainResult TrainInPlace(const Unit& unit, const Batch& batch,
                           const std::function<void(std::uint32_t block)>& on_final,
                           const std::function<void()>& meanwhile,
                           const std::atomic<bool>& cancelled);
  const float* Bring(Copy& copy, std::span<const float> parameters, std::uint32_t version);

  Compute& compute_;
  HostLink& link_;
  Model& model_;
  const ExchangeOn exchange_;
  Copy training_;
  Copy evaluated_;  // takes memory at its first use
  DeviceArray<float> gradient_;
};

}  // namespace lockstep::worker
