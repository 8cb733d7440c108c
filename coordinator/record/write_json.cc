#include "coordinator/record/write_json.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/routes.h"
#include "coordinator/record/line_writer.h"

namespace lockstep::coordinator {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// {"accuracy": {"mean": 0.9}}; what is not finite is null.
Json MetricsJson(const std::vector<Metric>& metrics) {
  Json out = Json::object();
  for (const Metric& metric : metrics) out[metric.name][Name(metric.reduction)] = ValueOf(metric);
  return out;
}

void WriteWork(const RoundRecord& record, LineWriter& out) {
  out.Raw(",\"contributors\":");
  out.List(record.contributors, [&out](const ContributorRecord& c) {
    out.Raw("{\"worker\":");
    out.Number(c.worker.value);
    out.Raw(",\"part\":");
    out.Number(c.part.value);
    out.Raw(",\"weight\":");
    out.Real(c.weight);
    out.Raw(",\"samples\":");
    out.Number(c.samples);
    out.Raw(",\"ranges\":");
    out.Ranges(c.ranges);
    if (c.staleness) {
      out.Raw(",\"staleness\":");
      out.Number(*c.staleness);
    }
    out.Raw("}");
  });
  out.Raw(",\"units\":");
  out.List(record.units, [&out](const UnitRecord& unit) {
    out.Raw("{\"worker\":");
    out.Number(unit.worker.value);
    out.Raw(",\"range\":");
    out.Range(unit.range);
    out.Raw(",\"start\":");
    out.Time(unit.start);
    out.Raw(",\"end\":");
    out.Time(unit.end);
    if (unit.units > 1) {
      out.Raw(",\"units\":");
      out.Number(unit.units);
    }
    if (unit.run > 1) {
      out.Raw(",\"run\":");
      out.Number(unit.run);
    }
    out.Raw("}");
  });
  out.Raw(",\"excluded\":");
  out.List(record.excluded, [&out](WorkerId worker) { out.Number(worker.value); });
  if (!record.contributors.empty() && record.contributors.front().staleness) {
    out.Raw(",\"carried\":");
    out.List(record.carried, [&out](WorkerId worker) { out.Number(worker.value); });
  }
  out.Raw(",\"moved\":");
  out.List(record.moved, [&out](const MoveRecord& move) {
    out.Raw("{\"from\":");
    out.Number(move.from.value);
    out.Raw(",\"to\":");
    out.Number(move.to.value);
    out.Raw(",\"range\":");
    out.Range(move.range);
    out.Raw("}");
  });
  out.Raw(",\"dropped\":");
  out.Ranges(record.dropped);
  if (!record.skipped.empty()) {
    out.Raw(",\"skipped\":");
    out.List(record.skipped, [&out](const SkippedRecord& skipped) {
      out.Raw("{\"worker\":");
      out.Number(skipped.worker.value);
      out.Raw(",\"ranges\":");
      out.Ranges(skipped.ranges);
      out.Raw(",\"reason\":\"not finite\"}");
    });
  }
  out.Raw(",\"requeued\":");
  out.Ranges(record.requeued);
}

void WriteTimes(const RoundRecord& record, LineWriter& out) {
  out.Raw(",\"times\":{\"start\":");
  out.Time(record.start);
  if (!record.sending.empty()) {
    out.Raw(",\"sending\":");
    out.TimesByWorker(record.sending);
  }
  out.Raw(",\"ready\":");
  out.TimesByWorker(record.ready);
  out.Raw(",\"delivered\":");
  out.TimesByWorker(record.delivered);
  out.Raw(",\"commit\":");
  out.Time(record.commit);
  out.Raw(",\"applied\":");
  if (record.applied) {
    out.Time(*record.applied);
  } else {
    out.Raw("null");
  }
  out.Raw("}");
}

}  // namespace

std::string RoundLine(const RoundRecord& record) {
  LineWriter out;
  out.Raw("{\"round\":");
  out.Number(record.round.value);
  out.Raw(",\"epoch\":");
  out.Number(record.epoch.value);
  out.Raw(",\"update\":");
  out.Number(record.update);
  out.Raw(",\"attempts\":");
  out.List(record.attempts, [&out](const AttemptRecord& attempt) {
    out.Raw("{\"attempt\":");
    out.Number(attempt.attempt.value);
    out.Raw(",\"reason\":");
    out.Text(attempt.reason);
    out.Raw("}");
  });
  if (record.algorithm != ExchangeAlgorithm::kDirect) {
    out.Raw(",\"algorithm\":");
    out.Text(std::string(AlgorithmName(record.algorithm)));
  }
  out.Raw(",\"policy\":");
  out.Text(record.policy);
  out.Raw(",\"reason\":");
  out.Text(record.reason);
  WriteWork(record, out);
  out.Raw(",\"loss\":");
  out.Real(record.loss);
  if (!record.metrics.empty()) {
    out.Raw(",\"metrics\":");
    out.Raw(MetricsJson(record.metrics).dump());
  }
  out.Raw(",\"samples\":");
  out.Number(record.samples);
  if (record.divisor) {
    out.Raw(",\"divisor\":");
    out.Number(*record.divisor);
  }
  out.Raw(",\"learning_rate\":");
  out.Real(record.learning_rate);
  if (record.sent.bytes > 0) {
    out.Raw(",\"sent\":{\"bytes\":");
    out.Number(record.sent.bytes);
    out.Raw(",\"early_bytes\":");
    out.Number(record.sent.early_bytes);
    out.Raw("}");
  }
  if (!record.input_wait.empty()) {
    out.Raw(",\"input_wait\":");
    out.TimesByWorker(record.input_wait);
  }
  WriteTimes(record, out);
  if (record.digest) {
    out.Raw(fmt::format(",\"digest\":{{\"slice\":{},\"value\":\"{:016x}\",\"agreeing\":{}}}",
                        record.digest->slice, record.digest->value, record.digest->agreeing));
  }
  out.Raw("}");
  return out.Take();
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

namespace {

// Written by hand, as Json::dump(2) would: 256 workers have 65,280 paths.
std::string PathsText(const std::vector<PathRecord>& paths) {
  LineWriter out;
  const char* before = "[\n";
  for (const PathRecord& path : paths) {
    out.Raw(before);
    out.Raw("    {\n      \"from\": ");
    out.Number(path.from.value);
    out.Raw(",\n      \"to\": ");
    out.Number(path.to.value);
    out.Raw(",\n      \"path\": ");
    out.Text(path.path);
    out.Raw(",\n      \"gb_per_s\": ");
    out.Raw(Json(path.gb_per_second).dump());
    out.Raw("\n    }");
    before = ",\n";
  }
  out.Raw("\n  ]");
  return out.Take();
}

Json AuditJson(const AuditRecord& audit) {
  Json wrong = Json::array();
  for (const WorkerId worker : audit.wrong) wrong.push_back(worker.value);
  return {{"units", audit.units}, {"differed", audit.differed}, {"wrong", std::move(wrong)}};
}

// The share of the exchange that overlapped with computation, or why there is no such figure.
Json OverlapJson(const JobResult& result) {
  if (result.sent.bytes > 0) {
    return {{"share",
             static_cast<double>(result.sent.early_bytes) / static_cast<double>(result.sent.bytes)},
            {"bytes", result.sent.bytes},
            {"early_bytes", result.sent.early_bytes}};
  }
  const bool modelled = result.simulated && result.simulated->exchange == "modelled";
  const bool passed_on = result.algorithm != ExchangeAlgorithm::kDirect;
  const char* why = result.totals.rounds == 0 ? "no round was closed"
                    : passed_on               ? "sums are passed on once a round is committed"
                    : modelled                ? "the exchange is modelled, nothing is sent"
                    : result.workers == 1
                        ? "there was no other worker to send to"
                        : "contributions were read in mapped memory, none was sent";
  return {{"share", nullptr}, {"reason", why}};
}

}  // namespace

std::string SummaryText(const JobResult& result) {
  Json out;
  out["status"] = std::string(Name(result.outcome));
  out["reason"] = result.reason;
  out["policy"] = result.policy;
  out["algorithm"] = std::string(AlgorithmName(result.algorithm));
  out["algorithm_reason"] = result.algorithm_reason;
  out["transport"] = result.transport;
  out["workers"] = result.workers;
  out["rounds"] = result.totals.rounds;
  out["epochs"] = result.totals.epochs;
  out["wall_seconds"] = result.wall_seconds;
  out["train_loss"] = OrNull(result.train_loss);
  if (!result.metrics.empty()) out["metrics"] = MetricsJson(result.metrics);
  out["test_accuracy"] = OrNull(result.test_accuracy);
  out["test_loss"] = OrNull(result.test_loss);
  out["dataset_digest"] =
      result.dataset_digest.empty() ? Json(nullptr) : Json(result.dataset_digest);
  out["params_digest"] = result.params_digest.empty() ? Json(nullptr) : Json(result.params_digest);
  out["checkpoint_round"] =
      result.checkpoint_round ? Json(result.checkpoint_round->value) : Json(nullptr);
  if (result.audit) out["audit"] = AuditJson(*result.audit);
  out["digest_differs"] = Json::array();
  for (WorkerId worker : result.digest_differs) out["digest_differs"].push_back(worker.value);
  out["samples_counted"] = result.totals.samples_counted;
  out["samples_dropped"] = result.totals.samples_dropped;
  out["samples_requeued"] = result.totals.samples_requeued;
  out["samples_moved"] = result.totals.samples_moved;
  out["paths"] = Json::array();
  out["stragglers"] = Json::array();
  for (const StragglerRecord& s : result.stragglers) {
    out["stragglers"].push_back({{"worker", s.worker.value},
                                 {"held_up_seconds", s.held_up_seconds},
                                 {"would_have_held_up_seconds", s.would_have_held_up_seconds},
                                 {"kind", s.kind}});
  }
  out["saved_seconds"] = result.saved_seconds;
  out["overlap"] = OverlapJson(result);
  out["emulated"] = result.emulation.any() || result.simulated.has_value();
  out["unit_time_seconds"] = result.emulation.unit_seconds;
  out["slowdowns"] = result.emulation.slowdowns;
  if (result.simulated) {
    out["simulated"] = true;
    out["exchange"] = result.simulated->exchange;
    out["seed"] = result.simulated->seed;
  }
  std::string text = out.dump(2) + "\n";
  // A line break within a text is escaped, so this is the key.
  constexpr std::string_view kNoPaths = "\n  \"paths\": []";
  if (const auto at = text.find(kNoPaths); at != std::string::npos && !result.paths.empty()) {
    text.replace(at + kNoPaths.size() - 2, 2, PathsText(result.paths));
  }
  return text;
}

std::string StatusText(const JobStatus& status) {
  Json out;
  out["job_id"] = status.job_id;
  out["phase"] = std::string(Name(status.phase));
  out["epoch"] = status.epoch.value;
  out["round"] = status.round.value;
  out["updates"] = status.updates;
  out["loss"] = OrNull(status.loss);
  if (!status.metrics.empty()) out["metrics"] = MetricsJson(status.metrics);
  out["test_accuracy"] = OrNull(status.test_accuracy);
  out["samples_per_second"] = status.samples_per_second;
  out["contributors"] = status.contributors;
  out["excluded"] = status.excluded;
  out["workers"] = status.workers;
  out["policy"] = status.policy;
  out["transport"] = status.transport;
  out["reason"] = status.reason;
  out["waiting_for"] = status.waiting_for;
  out["warnings"] = status.warnings;
  if (status.audit) out["audit"] = AuditJson(*status.audit);
  out["seconds"] = status.seconds;
  out["emulated"] = status.emulation.any();
  out["unit_time_seconds"] = status.emulation.unit_seconds;
  out["slowdowns"] = status.emulation.slowdowns;
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
                              {"resident_bytes", m.resident_bytes},
                              {"run_seconds", m.run_seconds},
                              {"input_wait_seconds", OrNull(m.input_wait_seconds)},
                              {"samples_ahead", OrNull(m.samples_ahead)},
                              {"gradient_times", OrNull(m.gradient_times)},
                              {"rounds_contributed", m.rounds_contributed},
                              {"rounds_excluded", m.rounds_excluded},
                              {"held_up_seconds", m.held_up_seconds},
                              {"held_up_by_data_seconds", m.held_up_by_data_seconds},
                              {"owner", m.owner},
                              {"draining", m.draining},
                              {"away", m.away}});
  }
  return out.dump(2) + "\n";
}

}  // namespace lockstep::coordinator
