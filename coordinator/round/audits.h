// The search for a worker that computes wrong gradients which look like right ones. Digests of
// parameters do not find it: what it sends is summed by everybody alike.
//
// Some units are computed by a second worker too (audit.share), and both say what came out. Two
// that differ are suspects. From then on the units of one of them are computed by the other one and
// by a third worker. If one of the three differs from two that agree, it is wrong. If all three
// agree often, the suspicion ends.
//
// Workers that compute alike (msg::Audited::arithmetic) have to agree on all bits. Others may
// differ by audit.tolerance times the gradient's norm, as their sketches tell it.
//
// Pure: plans and answers in, orders and findings out. The state is a few numbers for each of the
// last rounds. A coordinator that takes over begins without suspects, and knows who was
// wrong before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/messages.h"
#include "coordinator/job/records.h"

namespace lockstep::coordinator {

class Audits {
 public:
  struct Options {
    double share = 0;
    double tolerance = 0;
    std::uint64_t seed = 0;  // chooses the units
  };
  struct Finding {
    enum class Kind : std::uint8_t {
      kDiffer,  // two are suspects from now on
      kWrong,   // `worker` is
      kOver,    // what two suspects differed in has not come again
      kUnlike,  // no two of three agree, so gradients do not repeat: no audits any more
    };
    Kind kind = Kind::kDiffer;
    std::string text;
    std::optional<MemberId> worker = std::nullopt;
  };

  // `before`: what an earlier coordinator of the job has found.
  explicit Audits(Options options, AuditRecord before = {})
      : options_(options), record_(std::move(before)) {}

  // Orders for a round's plan: at most one for each assignment's first unit. `able`: the members
  // that can compute its units, with assignments or without, ascending.
  std::vector<Audit> Choose(const Plan& plan, const std::vector<MemberId>& able);
  // A member's gradient. An answer that nobody waits for changes nothing. A member that was given
  // its plan again computes the unit again, and one whose units were taken back has another first.
  std::vector<Finding> OnAudited(const MemberId& from, const msg::Audited& audited);
  // The round's plan is void, or it is closed: who has not answered does so no more.
  std::vector<Finding> OnOver(RoundId round);
  void OnOut(WorkerId worker);

  const AuditRecord& record() const { return record_; }

 private:
  // Three that agree so often end a suspicion.
  static constexpr std::uint32_t kAgreements = 8;

  struct Answer {
    MemberId from;
    msg::Audited audited;
  };
  struct Open {
    RoundId round;
    Attempt plan;
    Audit audit;
    std::vector<Answer> answers;
    std::size_t Asked() const { return 1 + audit.by.size(); }
    bool Asks(const MemberId& member) const;
  };
  struct Suspicion {
    MemberId one;
    MemberId other;
    std::uint32_t agreements = 0;
  };

  std::optional<Audit> AuditSuspects(const Plan& plan, const std::vector<MemberId>& able) const;
  void Judge(const Open& open, std::vector<Finding>* findings);
  void JudgeTwo(const Open& open, std::vector<Finding>* findings);
  void JudgeThree(const Open& open, std::vector<Finding>* findings);
  bool Agree(const msg::Audited& one, const msg::Audited& other) const;

  const Options options_;
  std::deque<Open> open_;  // of the last rounds
  std::optional<Suspicion> suspicion_;
  std::size_t able_ = 0;  // members that could compute the newest round
  bool off_ = false;
  AuditRecord record_;
};

}  // namespace lockstep::coordinator
