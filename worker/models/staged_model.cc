#include "worker/models/staged_model.h"

#include "base/check.h"

namespace lockstep::worker {

// Follows the backward pass of a unit, and the parts of the sum on their way to the exchange's
// memory.
class StagedModel::Downloads final : public BackwardObserver {
 public:
  Downloads(StagedModel& staged, const Unit& unit,
            const std::function<void(std::uint32_t)>& on_final,
            const std::function<void()>& meanwhile)
      : staged_(staged), unit_(unit), on_final_(on_final), meanwhile_(meanwhile) {}
  // Waits for cancelled downloads: nothing may arrive later.
  ~Downloads() override {
    for (; next_ < under_way_.size(); ++next_) staged_.link_.Wait(under_way_[next_].ticket);
  }

  void BlockFinal(std::uint32_t block) override {
    if (!last_) Decide();
    if (!*last_) return;  // the sum stays on the device
    if (staged_.exchange_ == ExchangeOn::kDevice) {
      under_way_.push_back({block, staged_.link_.Mark()});
      return;
    }
    const ParameterBlock& range = staged_.model_.blocks()[block];
    under_way_.push_back(
        {block, staged_.link_.Download(staged_.gradient_.get() + range.offset,
                                       unit_.gradient.subspan(range.offset, range.count))});
  }
  void AllAsked() override {
    if (meanwhile_) meanwhile_();
    while (next_ < under_way_.size()) {
      const UnderWay& download = under_way_[next_++];
      staged_.link_.Wait(download.ticket);
      on_final_(download.block);
    }
  }

 private:
  struct UnderWay {
    std::uint32_t block;
    HostLink::Ticket ticket;
  };
  void Decide() {
    last_ = unit_.last();
    if (*last_ && staged_.exchange_ == ExchangeOn::kHost) staged_.link_.Pin(unit_.gradient);
  }

  StagedModel& staged_;
  const Unit& unit_;
  const std::function<void(std::uint32_t)>& on_final_;
  const std::function<void()>& meanwhile_;
  std::vector<UnderWay> under_way_;
  std::size_t next_ = 0;
  std::optional<bool> last_;  // once it is known
};

StagedModel::StagedModel(Compute& compute, Model& model, ExchangeOn exchange)
    : compute_(compute), link_(*compute.host_link()), model_(model), exchange_(exchange) {
  if (exchange_ == ExchangeOn::kDevice) return;
  training_.memory = DeviceArray<float>(compute, model.parameter_count());
  gradient_ = DeviceArray<float>(compute, model.parameter_count());
}

const float* StagedModel::Bring(Copy& copy, std::span<const float> parameters,
                                std::uint32_t version) {
  LOCKSTEP_CHECK(parameters.size() == model_.parameter_count());
  if (copy.memory.get() == nullptr) {
    copy.memory = DeviceArray<float>(compute_, model_.parameter_count());
  }
  if (copy.version != version) {
    link_.Upload(parameters, copy.memory.get());
    copy.version = version;
  }
  return copy.memory.get();
}

TrainResult StagedModel::TrainUnit(const Unit& unit, const Batch& batch,
                                   const std::function<void(std::uint32_t)>& on_final,
                                   const std::function<void()>& meanwhile,
                                   const std::atomic<bool>& cancelled) {
  LOCKSTEP_CHECK(unit.gradient.size() == model_.parameter_count());
  if (exchange_ == ExchangeOn::kDevice) {
    return TrainInPlace(unit, batch, on_final, meanwhile, cancelled);
  }
  link_.Pin(unit.parameters);
  const float* parameters = Bring(training_, unit.parameters, unit.version);
  if (unit.first) link_.Zero(gradient_.get(), model_.parameter_count());
  Downloads downloads(*this, unit, on_final, meanwhile);
  return model_.TrainUnit(parameters, gradient_.get(), batch, &downloads, cancelled);
}

TrainResult StagedModel::TrainInPlace(const Unit& unit, const Batch& batch,
                                      const std::function<void(std::uint32_t)>& on_final,
                                      const std::function<void()>& meanwhile,
                                      const std::atomic<bool>& cancelled) {
  if (unit.first) link_.Zero(unit.gradient.data(), model_.parameter_count());
  Downloads marks(*this, unit, on_final, meanwhile);
  const TrainResult result =
      model_.TrainUnit(unit.parameters.data(), unit.gradient.data(), batch, &marks, cancelled);
  // It also waits for a cancelled unit.
  link_.Wait(link_.Mark());
  return result;
}

void StagedModel::Collect(std::span<float> gradient) {
  LOCKSTEP_CHECK(exchange_ == ExchangeOn::kHost, "the sum is where the exchange reads it");
  LOCKSTEP_CHECK(gradient.size() == model_.parameter_count());
  link_.Pin(gradient);
  link_.Wait(link_.Download(gradient_.get(), gradient));
}

EvalResult StagedModel::Evaluate(std::span<const float> parameters, std::uint32_t version,
                                 const Batch& batch) {
  if (exchange_ == ExchangeOn::kDevice) return model_.Evaluate(parameters.data(), batch);
  // The memory is not pinned: the same numbers may lie elsewhere next time, and other data here.
  return model_.Evaluate(Bring(evaluated_, parameters, version), batch);
}

}  // namespace lockstep::worker
