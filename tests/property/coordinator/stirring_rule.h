// A work rule that moves units about without a plan: often, from anybody to anybody, several times
// in a row to the same one, and fences somebody now and then. What comes out must be right all the
// same. (Where all but one are fenced and that one dies, nobody is left who can compute the round:
// so no fences, and no stops that bring them about, beside kills.)
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/job_config.h"
#include "base/random.h"
#include "base/result.h"
#include "policies/full.h"
#include "policies/policy.h"

namespace lockstep::coordinator {

class StirringRule final : public policies::WorkRule {
 public:
  explicit StirringRule(std::uint64_t seed, bool fences = true)
      : random_(seed, 77), fences_(fences) {}

  std::string_view name() const override { return "stirring"; }

  std::vector<std::uint32_t> Share(std::span<const policies::WorkerView> members,
                                   std::uint32_t units) override {
    std::vector<std::uint32_t> shares(members.size());
    for (std::uint32_t i = 0; i < units; ++i) ++shares[random_.NextBelow(shares.size())];
    return shares;
  }

  policies::WorkVerdict Judge(const policies::RoundView& view) override {
    policies::WorkVerdict verdict;
    verdict.reason = "stirred";
    verdict.look_again = view.now + std::chrono::microseconds(100 + random_.NextBelow(3000));
    const std::size_t count = view.workers.size();
    if (count < 2) return verdict;
    const auto somebody = [&] { return view.workers[random_.NextBelow(count)].member.worker; };
    if (random_.NextBelow(2) == 0) {
      const WorkerId to = somebody();
      for (std::uint64_t i = random_.NextBelow(4); i > 0; --i) {
        verdict.moves.push_back(
            {somebody(), to, static_cast<std::uint32_t>(1 + random_.NextBelow(3))});
      }
    }
    if (fences_ && random_.NextBelow(400) == 0) verdict.fence.push_back(somebody());
    return verdict;
  }

 private:
  RandomStream random_;
  bool fences_;
};

// Mostly single units, so that there is something to stir.
class StirredRuns final : public policies::RunRule {
 public:
  explicit StirredRuns(std::uint64_t seed) : random_(seed, 78) {}

  std::vector<RunLimit> Runs(std::span<const policies::WorkerView> members,
                             std::span<const std::uint32_t>) override {
    std::vector<RunLimit> limits(members.size(), RunLimit{.units = 1});
    for (RunLimit& limit : limits) {
      if (random_.NextBelow(4) > 0) continue;
      limit = {.units = static_cast<std::uint32_t>(random_.NextBelow(4)),
               .guided = random_.NextBelow(2) == 0};
    }
    return limits;
  }

 private:
  RandomStream random_;
};

// Its name is `plugin`; these are how the next one is made.
struct Stirring {
  std::uint64_t seed = 0;
  bool fences = true;
  static Stirring& Next() {
    static Stirring next;
    return next;
  }
};

inline Result<policies::Policy> MakeStirring(const PolicySection&, std::uint32_t) {
  policies::Policy policy;
  policy.name = "stirring";
  policy.closing = policies::MakeFull();
  policy.work = std::make_unique<StirringRule>(Stirring::Next().seed, Stirring::Next().fences);
  policy.runs = std::make_unique<StirredRuns>(Stirring::Next().seed);
  return policy;
}

}  // namespace lockstep::coordinator
