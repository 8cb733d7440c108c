#include "tools/simulate/describe.h"

#include <fmt/format.h>

#include "base/suggest.h"

namespace lockstep::coordinator {
namespace {

std::string Range(const SampleRange& range) { return fmt::format("[{},{})", range.from, range.to); }

std::string Ranges(const std::vector<SampleRange>& ranges) {
  std::string text;
  for (const SampleRange& range : ranges)
    text += fmt::format("{}{}", text.empty() ? "" : " ", Range(range));
  return text;
}

// Neighbouring units as one range: "#0-3 [0,16)".
std::string Units(const std::vector<Unit>& units) {
  std::string text;
  for (std::size_t i = 0; i < units.size();) {
    std::size_t end = i + 1;
    while (end < units.size() && units[end].index == units[end - 1].index.Next() &&
           units[end].range.from == units[end - 1].range.to) {
      ++end;
    }
    if (!text.empty()) text += ", ";
    text += fmt::format("#{}", units[i].index);
    if (end > i + 1) text += fmt::format("-{}", units[end - 1].index);
    text += fmt::format(" {}", Range({units[i].range.from, units[end - 1].range.to}));
    i = end;
  }
  return text.empty() ? "nothing" : text;
}

std::string Members(const std::vector<MemberId>& members) {
  std::string text;
  for (const MemberId& member : members) {
    text += fmt::format("{}{}", text.empty() ? "" : " ", member.worker);
  }
  return text.empty() ? "nobody" : text;
}

std::string Owners(const OwnerMap& map) {
  std::string text = fmt::format("owners v{}:", map.version);
  for (const OwnerShare& share : map.owners) {
    text += fmt::format(" {}", share.owner.worker);
    if (share.weight != 1) text += fmt::format("*{}", share.weight);
  }
  if (!map.direct()) {
    text += map.algorithm == ExchangeAlgorithm::kRing ? ", along a ring" : ", along trees";
  }
  if (map.holders.empty()) return text;
  text += ", held by";
  for (const ShardHolders& shard : map.holders) {
    text += " ";
    for (const MemberId& id : shard.members) {
      text += fmt::format("{}{}", &id == &shard.members.front() ? "" : "/", id.worker);
    }
  }
  return text;
}

std::string Describe(const Plan& plan) {
  std::string text = fmt::format("plan {} (epoch {}):", plan.round, plan.epoch);
  for (const Assignment& assignment : plan.assignments) {
    text += fmt::format(" {}={};", assignment.member.worker, Units(assignment.units));
  }
  return fmt::format("{} {}, members {}", text, Owners(plan.owners), Members(plan.members));
}

std::string Describe(const msg::Commit& commit) {
  std::string text = fmt::format("Commit {} attempt {} (update {}): parts", commit.round,
                                 commit.attempt, commit.update);
  for (const CommittedPart& part : commit.parts) {
    text += fmt::format(" {}.{}", part.member.worker, part.part);
  }
  text += fmt::format(", {} samples, lr {:.4g}, {}, members {}", commit.samples,
                      commit.learning_rate * commit.fraction, Owners(commit.owners),
                      Members(commit.members));
  if (commit.evaluation != 0) text += fmt::format(", evaluation {}", commit.evaluation);
  if (commit.checkpoint_writer) {
    text += fmt::format(", checkpoint by {}", commit.checkpoint_writer->worker);
  }
  return fmt::format("{}; {}", text, commit.next ? Describe(*commit.next) : "the last");
}

std::string Peers(const std::vector<PeerInfo>& peers) {
  std::vector<MemberId> members;
  for (const PeerInfo& peer : peers) members.push_back(peer.member);
  return Members(members);
}

const char* Name(StateSource source) {
  switch (source) {
    case StateSource::kSeed:
      return "the seed";
    case StateSource::kCheckpoint:
      return "the checkpoint";
    case StateSource::kPeers:
      return "its peers";
    case StateSource::kGiven:
      return "one worker's parameters";
    case StateSource::kHeld:
      return "its own parameters";
  }
  return "";
}

struct ToWorkerWords {
  std::string operator()(const msg::Welcome& m) const {
    return fmt::format("Welcome as worker {} (incarnation {}) of {}, the job is {:.3f} s old{}",
                       m.self.worker, m.self.incarnation, m.workers, Seconds(Duration(m.age_ns)),
                       m.standbys.empty() ? std::string()
                                          : fmt::format(", the next coordinator may be at {}",
                                                        Listed(m.standbys)));
  }
  std::string operator()(const msg::Refuse& m) const {
    return fmt::format("Refuse{}: {}", m.try_again ? " for now" : "", m.reason);
  }
  std::string operator()(const msg::Form& m) const {
    return fmt::format("Form {} over {}: connect to {}, expect {}", m.formation, m.transport,
                       Peers(m.connect_to), Peers(m.expect));
  }
  std::string operator()(const msg::MemberLeft& m) const {
    return fmt::format("MemberLeft {}: {}", m.member.worker, m.reason);
  }
  std::string operator()(const msg::Start& m) const {
    std::string text = fmt::format("Start from {}: {}", Name(m.source), Describe(m.plan));
    if (m.evaluation != 0) text += fmt::format(", evaluation {}", m.evaluation);
    if (m.checkpoint_writer) text += fmt::format(", checkpoint by {}", m.checkpoint_writer->worker);
    return text;
  }
  std::string operator()(const msg::Commit& m) const { return Describe(m); }
  std::string operator()(const msg::Revoke& m) const {
    return fmt::format("Revoke round {} from position {}, order {}", m.round, m.from, m.order);
  }
  std::string operator()(const msg::Assign& m) const {
    return fmt::format("Assign round {}: {}, order {}", m.round, Units(m.units), m.order);
  }
  std::string operator()(const msg::FenceRound& m) const {
    return fmt::format("FenceRound {}", m.round);
  }
  std::string operator()(const msg::NewOwners& m) const {
    return fmt::format("NewOwners round {}: {}", m.round, Owners(m.owners));
  }
  std::string operator()(const msg::FenceAttempt& m) const {
    return fmt::format("FenceAttempt {} of round {}: do you hold all sums?", m.attempt, m.round);
  }
  std::string operator()(const msg::Hedge& m) const {
    return fmt::format("Hedge of round {} attempt {}: {} stands in for {}", m.round, m.attempt,
                       m.by.worker, m.owner.worker);
  }
  std::string operator()(const msg::TakeSums& m) const {
    return fmt::format("TakeSums of round {} attempt {} from {}", m.commit.round, m.commit.attempt,
                       m.holder.worker);
  }
  std::string operator()(const msg::Decide& m) const {
    return fmt::format("Decide round {} attempt {}", m.round, m.attempt);
  }
  std::string operator()(const msg::CatchUp& m) const {
    std::string others;
    for (const MemberId& other : m.others) others += fmt::format(" {}", other.worker);
    return fmt::format("CatchUp from {}{}, open round {}", m.donor.worker, others, m.open_round);
  }
  std::string operator()(const msg::Evaluate& m) const {
    return fmt::format("Evaluate {} after round {}: {}", m.evaluation, m.round, Range(m.range));
  }
  std::string operator()(const msg::StateChunk&) const { return "StateChunk"; }
  std::string operator()(const msg::Finish& m) const {
    return fmt::format("Finish{}: {}",
                       m.failed  ? " (failed)"
                       : m.early ? " (early)"
                                 : "",
                       m.reason);
  }
  std::string operator()(const msg::SetSlowdown& m) const {
    std::string lines = m.specs;
    for (auto at = lines.find('\n'); at != std::string::npos; at = lines.find('\n', at + 1)) {
      lines.replace(at, 1, at + 1 == lines.size() ? "" : "; ");
    }
    return fmt::format("SetSlowdown {}", lines.empty() ? "none" : lines);
  }
  std::string operator()(const msg::AskToLeave& m) const {
    return fmt::format("AskToLeave: {}", m.reason);
  }
  std::string operator()(const msg::Standbys& m) const {
    return fmt::format("Standbys {}", Listed(m.addresses));
  }
  std::string operator()(const msg::Followed& m) const {
    return fmt::format("Followed {}: {} bytes of part {}", m.sequence, m.text.size(),
                       static_cast<int>(m.part));
  }
  std::string operator()(const msg::GiveParameters& m) const {
    return fmt::format("GiveParameters {} up to {}", m.giving, m.upto);
  }
  std::string operator()(const msg::Ping&) const { return "Ping"; }
};

struct FromWorkerWords {
  std::string operator()(const msg::Hello& m) const {
    return fmt::format("Hello, protocol {}{}", m.protocol,
                       m.wanted ? fmt::format(", wants slot {}", *m.wanted) : "");
  }
  std::string operator()(const msg::Ready& m) const {
    std::string offers;
    for (const TransportOffer& offer : m.transports) {
      if (!offer.address.empty()) offers += fmt::format(" {}", offer.name);
    }
    return fmt::format("Ready, data {}, {} samples, offers{}", m.dataset_digest, m.train_samples,
                       offers);
  }
  std::string operator()(const msg::Reached& m) const {
    std::string text = fmt::format("Reached {}:", m.formation);
    for (const PeerPath& path : m.peers) {
      text += fmt::format(" {}{}", path.peer.worker,
                          path.reached ? "" : fmt::format(" NOT ({})", path.error));
    }
    return text;
  }
  std::string operator()(const msg::Progress& m) const {
    return fmt::format("Progress round {}: {} units done", m.round, m.units_done);
  }
  std::string operator()(const msg::Sealed& m) const {
    std::vector<Unit> units;
    for (const UnitTiming& timing : m.units) units.push_back(timing.unit);
    return fmt::format("Sealed round {} part {}: {}", m.round, m.part, Units(units));
  }
  std::string operator()(const msg::Receipts& m) const {
    std::string text = fmt::format("Receipts round {} v{}:", m.round, m.map_version);
    for (const ReceivedPart& part : m.parts) {
      text += fmt::format(" {}.{}", part.member.worker, part.part);
    }
    return text;
  }
  std::string operator()(const msg::Revoked& m) const {
    if (m.fenced) return fmt::format("Revoked round {}: knows of the fence", m.round);
    return fmt::format("Revoked round {} from position {}, order {}", m.round, m.from, m.order);
  }
  std::string operator()(const msg::Published& m) const {
    return fmt::format("Published round {} attempt {}{}", m.round, m.attempt,
                       m.stands_in_for ? fmt::format(" for {}", *m.stands_in_for) : "");
  }
  std::string operator()(const msg::Applied& m) const {
    return fmt::format("Applied round {} attempt {}, digest {:x}", m.round, m.attempt, m.digest);
  }
  std::string operator()(const msg::HoldAnswer& m) const {
    return fmt::format("HoldAnswer round {} attempt {}: {}", m.round, m.attempt,
                       m.holds_all ? "yes" : "no");
  }
  std::string operator()(const msg::Held& m) const {
    return fmt::format("Held round {} attempt {}", m.round, m.attempt);
  }
  std::string operator()(const msg::NotFinite& m) const {
    std::string parts;
    for (const std::uint64_t part : m.parts) parts += fmt::format(" {}", part);
    return fmt::format("NotFinite round {} attempt {}:{}", m.round, m.attempt, parts);
  }
  std::string operator()(const msg::StopAsked& m) const {
    return fmt::format("StopAsked: {}", m.reason);
  }
  std::string operator()(const msg::Away& m) const {
    return fmt::format("Away for at most {:g} s: {}", Seconds(Duration(m.at_most_ns)), m.reason);
  }
  std::string operator()(const msg::Back&) const { return "Back"; }
  std::string operator()(const msg::Audited& m) const {
    return fmt::format("Audited {}: unit {}, {}", m.round, m.unit.index,
                       lockstep::ToString(m.bits));
  }
  std::string operator()(const msg::Costs& m) const {
    return fmt::format("Costs of epoch {}: {} samples from {} on", m.epoch, m.costs.size() / 2,
                       m.from);
  }
  std::string operator()(const msg::Noted& m) const { return fmt::format("Noted {}", m.sequence); }
  std::string operator()(const msg::Given& m) const {
    return fmt::format("Given {}: {} bytes at {}", m.giving, m.bytes.size(), m.offset);
  }
  std::string operator()(const msg::Behind& m) const { return fmt::format("Behind: {}", m.reason); }
  std::string operator()(const msg::Level& m) const {
    return fmt::format("Level at round {}", m.round);
  }
  std::string operator()(const msg::Unreachable& m) const {
    return fmt::format("Unreachable {}: {}", m.peer.worker, m.reason);
  }
  std::string operator()(const msg::EvaluationResult& m) const {
    return fmt::format("EvaluationResult {}: {} right of {}", m.evaluation, m.correct,
                       Range(m.range));
  }
  std::string operator()(const msg::StateChunk& m) const {
    return fmt::format("StateChunk after round {}: tensor {} at {}, {} bytes{}", m.round, m.tensor,
                       m.offset, m.bytes.size(), m.last ? ", the last" : "");
  }
  std::string operator()(const msg::Final& m) const {
    return fmt::format("Final {}", m.params_digest);
  }
  std::string operator()(const msg::Leave& m) const { return fmt::format("Leave: {}", m.reason); }
  std::string operator()(const msg::Pong&) const { return "Pong"; }
  std::string operator()(const msg::Copied& m) const {
    return fmt::format("Copied: {} values are there", m.values);
  }
  std::string operator()(const msg::CheckpointTaken& m) const {
    return fmt::format("CheckpointTaken: {} bytes", m.bytes);
  }
  std::string operator()(const msg::ReplicaDigest& m) const {
    return fmt::format("ReplicaDigest round {} attempt {}: {}", m.round, m.attempt,
                       ToString(m.digest));
  }
};

}  // namespace

std::string Describe(const msg::FromWorker& message) {
  return std::visit(FromWorkerWords{}, message);
}
std::string Describe(const msg::ToWorker& message) { return std::visit(ToWorkerWords{}, message); }

std::string Describe(const RoundRecord& record) {
  std::string text = fmt::format("round {} closed ({}):", record.round, record.reason);
  for (const ContributorRecord& contributor : record.contributors) {
    text +=
        fmt::format(" {}.{}={}", contributor.worker, contributor.part, Ranges(contributor.ranges));
  }
  if (record.attempts.size() > 1) {
    text += fmt::format("; attempt {} because {}", record.attempts.back().attempt,
                        record.attempts.back().reason);
  }
  for (const WorkerId worker : record.excluded) text += fmt::format("; excluded {}", worker);
  for (const MoveRecord& move : record.moved) {
    text += fmt::format("; moved {} from {} to {}", Range(move.range), move.from, move.to);
  }
  if (!record.requeued.empty()) text += fmt::format("; requeued {}", Ranges(record.requeued));
  if (!record.dropped.empty()) text += fmt::format("; dropped {}", Ranges(record.dropped));
  return text;
}

std::string Describe(const JobResult& result) {
  std::string text = fmt::format("job {}: {}; {} rounds, {} samples counted, {} requeued, {} moved",
                                 Name(result.outcome), result.reason, result.totals.rounds,
                                 result.totals.samples_counted, result.totals.samples_requeued,
                                 result.totals.samples_moved);
  if (result.test_accuracy) text += fmt::format(", accuracy {:.2f}", *result.test_accuracy);
  if (!result.params_digest.empty()) text += fmt::format(", digest {}", result.params_digest);
  return text;
}

}  // namespace lockstep::coordinator
