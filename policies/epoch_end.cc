#include "policies/epoch_end.h"

#include <string>
#include <utility>

namespace lockstep::policies {
namespace {

class EpochEnd final : public WorkRule {
 public:
  EpochEnd(const FlexrrOptions& options, std::unique_ptr<WorkRule> shares)
      : name_(shares->name()),
        places_units_(shares->PlacesUnits()),
        moves_(MakeFlexrr(options, std::move(shares))) {}

  std::string_view name() const override { return name_; }

  std::vector<std::uint32_t> Share(std::span<const WorkerView> members,
                                   std::uint32_t units) override {
    return moves_->Share(members, units);
  }

  WorkVerdict Judge(const RoundView& view) override {
    return view.exact ? moves_->Judge(view) : WorkVerdict();
  }

  // One round of an epoch is not worth finer units in all others.
  bool PlacesUnits() const override { return places_units_; }

  void OnCommitted(const RoundView& view) override { moves_->OnCommitted(view); }

 private:
  const std::string name_;
  const bool places_units_;
  const std::unique_ptr<WorkRule> moves_;
};

}  // namespace

std::unique_ptr<WorkRule> MakeEpochEnd(const FlexrrOptions& options,
                                       std::unique_ptr<WorkRule> shares) {
  return std::make_unique<EpochEnd>(options, std::move(shares));
}

}  // namespace lockstep::policies
