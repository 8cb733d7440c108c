#include "policies/work_none.h"

namespace lockstep::policies {
namespace {

class WorkNone final : public WorkRule {
 public:
  std::string_view name() const override { return "none"; }

  // The remainder goes to the members in front, one unit each.
  std::vector<std::uint32_t> Share(std::span<const WorkerView> members,
                                   std::uint32_t units) override {
    std::vector<std::uint32_t> shares;
    if (members.empty()) return shares;
    const auto count = static_cast<std::uint32_t>(members.size());
    for (std::uint32_t i = 0; i < count; ++i) {
      shares.push_back(units / count + (i < units % count ? 1 : 0));
    }
    return shares;
  }

  WorkVerdict Judge(const RoundView&) override { return {}; }
  bool PlacesUnits() const override { return false; }
};

}  // namespace

std::unique_ptr<WorkRule> MakeWorkNone() { return std::make_unique<WorkNone>(); }

}  // namespace lockstep::policies
