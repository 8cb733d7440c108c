#include "coordinator/record_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace lockstep::coordinator {
namespace {

using Json = nlohmann::ordered_json;

Json RangeJson(const SampleRange& range) { return Json::array({range.from, range.to}); }

Json RangesJson(const std::vector<SampleRange>& ranges) {
  Json out = Json::array();
  for (const SampleRange& range : ranges) out.push_back(RangeJson(range));
  return out;
}

// Microseconds are enough for a person and keep the lines short.
double Rounded(double seconds) {
  return static_cast<double>(static_cast<std::int64_t>(seconds * 1e6 + 0.5)) / 1e6;
}

Json TimesByWorker(const std::map<WorkerId, double>& times) {
  Json out = Json::object();
  for (const auto& [worker, seconds] : times) out[fmt::format("{}", worker)] = Rounded(seconds);
  return out;
}

template <class T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace

std::string RoundLine(const RoundRecord& record) {
  Json line;
  line["round"] = record.round.value;
  line["epoch"] = record.epoch.value;
  line["attempts"] = Json::array();
  for (const AttemptRecord& attempt : record.attempts) {
    line["attempts"].push_back({{"attempt", attempt.attempt.value}, {"reason", attempt.reason}});
  }
  line["policy"] = record.policy;
  line["reason"] = record.reason;
  line["contributors"] = Json::array();
  for (const ContributorRecord& c : record.contributors) {
    line["contributors"].push_back({{"worker", c.worker.value},
                                    {"part", c.part.value},
                                    {"weight", c.weight},
                                    {"samples", c.samples},
                                    {"ranges", RangesJson(c.ranges)}});
  }
  line["units"] = Json::array();
  for (const UnitRecord& unit : record.units) {
    line["units"].push_back({{"worker", unit.worker.value},
                             {"range", RangeJson(unit.range)},
                             {"start", Rounded(unit.start)},
                             {"end", Rounded(unit.end)}});
  }
  line["excluded"] = Json::array();
  for (WorkerId worker : record.excluded) line["excluded"].push_back(worker.value);
  line["moved"] = Json::array();
  for (const MoveRecord& move : record.moved) {
    line["moved"].push_back(
        {{"from", move.from.value}, {"to", move.to.value}, {"range", RangeJson(move.range)}});
  }
  line["dropped"] = RangesJson(record.dropped);
  line["requeued"] = RangesJson(record.requeued);
  line["loss"] = record.loss;
  line["samples"] = record.samples;
  line["learning_rate"] = record.learning_rate;
  Json& times = line["times"];
  times["start"] = Rounded(record.start);
  times["ready"] = TimesByWorker(record.ready);
  times["delivered"] = TimesByWorker(record.delivered);
  times["commit"] = Rounded(record.commit);
  times["applied"] = record.applied ? Json(Rounded(*record.applied)) : Json(nullptr);
  if (record.digest) {
    line["digest"] = {{"slice", record.digest->slice},
                      {"value", fmt::format("{:016x}", record.digest->value)},
                      {"agreeing", record.digest->agreeing}};
  }
  return line.dump();
}

std::string EvaluationLine(const EvaluationRecord& record) {
  Json line;
  line["round"] = record.round.value;
  line["epoch"] = record.epoch.value;
  line["samples"] = record.samples;
  line["loss"] = record.loss;
  line["accuracy"] = record.accuracy;
  return line.dump();
}

std::string SummaryText(const JobResult& result) {
  Json out;
  out["status"] = std::string(Name(result.outcome));
  out["reason"] = result.reason;
  out["policy"] = result.policy;
  out["transport"] = result.transport;
  out["workers"] = result.workers;
  out["rounds"] = result.totals.rounds;
  out["epochs"] = result.totals.epochs;
  out["wall_seconds"] = result.wall_seconds;
  out["train_loss"] = OrNull(result.train_loss);
  out["test_accuracy"] = OrNull(result.test_accuracy);
  out["test_loss"] = OrNull(result.test_loss);
  out["params_digest"] = result.params_digest.empty() ? Json(nullptr) : Json(result.params_digest);
  out["digest_differs"] = Json::array();
  for (WorkerId worker : result.digest_differs) out["digest_differs"].push_back(worker.value);
  out["samples_counted"] = result.totals.samples_counted;
  out["samples_dropped"] = result.totals.samples_dropped;
  out["samples_requeued"] = result.totals.samples_requeued;
  out["samples_moved"] = result.totals.samples_moved;
  out["paths"] = Json::array();
  for (const PathRecord& path : result.paths) {
    out["paths"].push_back({{"from", path.from.value},
                            {"to", path.to.value},
                            {"path", path.path},
                            {"gb_per_s", path.gb_per_second}});
  }
  out["stragglers"] = Json::array();
  for (const StragglerRecord& s : result.stragglers) {
    out["stragglers"].push_back(
        {{"worker", s.worker.value}, {"held_up_seconds", s.held_up_seconds}, {"kind", s.kind}});
  }
  out["saved_seconds"] = result.saved_seconds;
  return out.dump(2) + "\n";
}

std::string StatusText(const JobStatus& status) {
  Json out;
  out["phase"] = std::string(Name(status.phase));
  out["epoch"] = status.epoch.value;
  out["round"] = status.round.value;
  out["updates"] = status.updates;
  out["loss"] = OrNull(status.loss);
  out["test_accuracy"] = OrNull(status.test_accuracy);
  out["samples_per_second"] = status.samples_per_second;
  out["contributors"] = status.contributors;
  out["excluded"] = status.excluded;
  out["policy"] = status.policy;
  out["transport"] = status.transport;
  out["waiting_for"] = status.waiting_for;
  out["samples_counted"] = status.totals.samples_counted;
  out["samples_requeued"] = status.totals.samples_requeued;
  out["members"] = Json::array();
  for (const MemberStatus& m : status.members) {
    out["members"].push_back({{"worker", m.member.worker.value},
                              {"incarnation", m.member.incarnation.value},
                              {"state", std::string(Name(m.state))},
                              {"host", m.host},
                              {"pid", m.pid},
                              {"device", m.device},
                              {"units_given", m.units_given},
                              {"units_done", m.units_done},
                              {"unit_seconds", m.unit_seconds},
                              {"silent_seconds", m.silent_seconds},
                              {"rounds_contributed", m.rounds_contributed},
                              {"rounds_excluded", m.rounds_excluded},
                              {"held_up_seconds", m.held_up_seconds},
                              {"owner", m.owner}});
  }
  return out.dump(2) + "\n";
}

}  // namespace lockstep::coordinator
