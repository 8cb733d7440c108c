#include "coordinator/record/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>

namespace lockstep::coordinator {
namespace {

constexpr std::array kPhases = {Phase::kGathering, Phase::kForming, Phase::kTraining,
                                Phase::kEnding, Phase::kFinished};
constexpr std::array kStates = {
    MemberState::kJoining, MemberState::kReady,  MemberState::kForming, MemberState::kCatchingUp,
    MemberState::kLive,    MemberState::kBehind, MemberState::kLost};

// Hosts and devices are what a worker said of itself.
std::string Escaped(const std::string& value) {
  std::string text;
  for (const char c : value) {
    if (c == '\\' || c == '"') text.push_back('\\');
    if (c == '\n') {
      text += "\\n";
    } else {
      text.push_back(c);
    }
  }
  return text;
}

// As the format spells what is not finite.
std::string Real(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

std::string Head(const char* name, const char* type, const char* help) {
  return fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

template <class Value>
std::string One(const char* name, const char* type, const char* help, Value value) {
  return Head(name, type, help) + fmt::format("{} {}\n", name, value);
}

// Each worker that was ever there has one line.
template <class ValueOf>
std::string OfWorkers(const JobStatus& status, const char* name, const char* type, const char* help,
                      ValueOf value_of) {
  if (status.members.empty()) return "";
  std::string text = Head(name, type, help);
  for (const MemberStatus& member : status.members) {
    fmt::format_to(std::back_inserter(text), "{}{{worker=\"{}\"}} {}\n", name, member.member.worker,
                   value_of(member));
  }
  return text;
}

std::string JobText(const JobStatus& status) {
  std::string text = Head("lockstep_job_info", "gauge",
                          "Labels say with which policy and transport the job runs; always 1.");
  text += fmt::format("lockstep_job_info{{policy=\"{}\",transport=\"{}\",emulated=\"{}\"}} 1\n",
                      Escaped(status.policy), Escaped(status.transport), status.emulation.any());
  text += Head("lockstep_job_phase", "gauge", "1 for the phase that the job is in.");
  for (const Phase phase : kPhases) {
    text += fmt::format("lockstep_job_phase{{phase=\"{}\"}} {}\n", Name(phase),
                        status.phase == phase ? 1 : 0);
  }
  text +=
      One("lockstep_job_seconds_total", "counter",
          "Since the job's start, without the time between a stop and its resume.", status.seconds);
  text += One("lockstep_round", "gauge", "The open round.", status.round.value);
  text += One("lockstep_epoch", "gauge", "The epoch that it is in.", status.epoch.value);
  // Counts of this process: counts that continued over a resume would count rounds twice.
  const Totals& before = status.resumed.totals;
  text += One("lockstep_rounds_total", "counter", "Closed rounds, since the coordinator's start.",
              status.totals.rounds - before.rounds);
  text += One("lockstep_updates_total", "counter", "Updates of the parameters, likewise.",
              status.updates - std::min(status.updates, status.resumed.updates));
  text += One("lockstep_samples_counted_total", "counter", "Samples in closed rounds.",
              status.totals.samples_counted - before.samples_counted);
  text += One("lockstep_samples_moved_total", "counter",
              "Samples that another worker computed than the one that they were planned for.",
              status.totals.samples_moved - before.samples_moved);
  text += One("lockstep_samples_requeued_total", "counter",
              "Samples that were left out and come again.",
              status.totals.samples_requeued - before.samples_requeued);
  text += One("lockstep_samples_dropped_total", "counter", "Samples that were left out for good.",
              status.totals.samples_dropped - before.samples_dropped);
  text +=
      One("lockstep_samples_per_second", "gauge", "The recent speed.", status.samples_per_second);
  if (status.loss) {
    text += One("lockstep_train_loss", "gauge", "Of the last closed round.", *status.loss);
  }
  if (!status.metrics.empty()) {
    text +=
        Head("lockstep_metric", "gauge", "That the program has logged, of the last closed round.");
    for (const Metric& metric : status.metrics) {
      text += fmt::format("lockstep_metric{{name=\"{}\",reduction=\"{}\"}} {}\n",
                          Escaped(metric.name), Name(metric.reduction), Real(ValueOf(metric)));
    }
  }
  if (status.test_accuracy) {
    text += One("lockstep_test_accuracy", "gauge", "Of the last evaluation, 0 to 1.",
                *status.test_accuracy);
  }
  text += One("lockstep_warnings", "gauge",
              "Warnings about the job's numbers that stand: of gradients, of the loss.",
              status.warnings.size());
  if (status.audit) {
    text += One("lockstep_audited_units_total", "counter",
                "Units whose gradient two workers or more have computed (audit.share).",
                status.audit->units);
    text += One("lockstep_audits_differed_total", "counter", "Of these, such that differed.",
                status.audit->differed);
    text += One("lockstep_audits_wrong_workers_total", "counter",
                "Workers that were put out because their gradients are wrong.",
                status.audit->wrong.size());
  }
  text += One("lockstep_job_workers", "gauge", "Workers that the job is for.", status.workers);
  text += One("lockstep_contributors", "gauge", "Workers in the last commit.", status.contributors);
  text += One("lockstep_excluded", "gauge", "Workers with units that are not in the last commit.",
              status.excluded);
  return text;
}

// Of those that have said it.
std::string MemoryText(const JobStatus& status) {
  constexpr const char* kName = "lockstep_worker_resident_memory_bytes";
  std::string text;
  for (const MemberStatus& m : status.members) {
    if (m.resident_bytes == 0) continue;
    if (text.empty()) {
      text = Head(kName, "gauge",
                  "Resident memory of a worker's process, what it has mapped of others included.");
    }
    text += fmt::format("{}{{worker=\"{}\"}} {}\n", kName, m.member.worker, m.resident_bytes);
  }
  return text;
}

// Of those whose programs say it.
std::string ReadingText(const JobStatus& status) {
  std::string waits;
  std::string ahead;
  for (const MemberStatus& m : status.members) {
    if (m.input_wait_seconds) {
      waits += fmt::format("lockstep_worker_input_wait_seconds_total{{worker=\"{}\"}} {}\n",
                           m.member.worker, Real(*m.input_wait_seconds));
    }
    if (m.samples_ahead) {
      ahead += fmt::format("lockstep_worker_samples_ahead{{worker=\"{}\"}} {}\n", m.member.worker,
                           *m.samples_ahead);
    }
  }
  std::string text;
  if (!waits.empty()) {
    text += Head("lockstep_worker_input_wait_seconds_total", "counter",
                 "Of the time of its runs, how long they waited for their samples.") +
            waits;
  }
  if (!ahead.empty()) {
    text += Head("lockstep_worker_samples_ahead", "gauge",
                 "Samples that its loader had ready behind its last run.") +
            ahead;
  }
  return text;
}

// Of those that are compared with others.
std::string GradientsText(const JobStatus& status) {
  constexpr const char* kName = "lockstep_worker_gradient_times";
  std::string text;
  for (const MemberStatus& m : status.members) {
    if (!m.gradient_times) continue;
    if (text.empty()) {
      text = Head(kName, "gauge",
                  "Norm of a worker's gradients over that of the median worker, lately; beyond "
                  "what their numbers of samples explain.");
    }
    text +=
        fmt::format("{}{{worker=\"{}\"}} {}\n", kName, m.member.worker, Real(*m.gradient_times));
  }
  return text;
}

std::string LinksText(std::span<const PathRecord> links) {
  constexpr const char* kName = "lockstep_link_bytes_per_second";
  if (links.empty()) return "";
  std::string text =
      Head(kName, "gauge",
           "How fast a worker could read from a peer, as measured once, when the two "
           "connected; not what goes over the link now.");
  for (const PathRecord& link : links) {
    text += fmt::format("{}{{worker=\"{}\",peer=\"{}\",path=\"{}\"}} {}\n", kName, link.from,
                        link.to, Escaped(link.path), Real(link.gb_per_second * 1e9));
  }
  return text;
}

std::string WorkersText(const JobStatus& status) {
  std::string text = Head("lockstep_workers", "gauge", "Workers by state.");
  for (const MemberState state : kStates) {
    text += fmt::format("lockstep_workers{{state=\"{}\"}} {}\n", Name(state),
                        std::ranges::count(status.members, state, &MemberStatus::state));
  }
  if (status.members.empty()) return text;
  text += Head("lockstep_worker_info", "gauge", "Where a worker runs, and on what; always 1.");
  for (const MemberStatus& m : status.members) {
    text += fmt::format("lockstep_worker_info{{worker=\"{}\",host=\"{}\",device=\"{}\"}} 1\n",
                        m.member.worker, Escaped(m.host), Escaped(m.device));
  }
  const auto of = [&](const char* name, const char* type, const char* help, auto value) {
    text += OfWorkers(status, name, type, help, value);
  };
  using M = const MemberStatus&;
  of("lockstep_worker_live", "gauge", "1 for a worker that takes part in rounds.",
     [](M m) { return m.state == MemberState::kLive ? 1 : 0; });
  of("lockstep_worker_owner", "gauge", "1 for an owner of a shard of the open round.",
     [](M m) { return m.owner ? 1 : 0; });
  of("lockstep_worker_incarnation", "gauge", "How many processes have had this worker's place.",
     [](M m) { return m.member.incarnation.value; });
  of("lockstep_worker_units_given", "gauge", "Units of the open round that it has.",
     [](M m) { return m.units_given; });
  of("lockstep_worker_units_done", "gauge", "Those of them that are finished.",
     [](M m) { return m.units_done; });
  of("lockstep_worker_unit_seconds", "gauge", "The recent mean time of a unit.",
     [](M m) { return m.unit_seconds; });
  of("lockstep_worker_silent_seconds", "gauge", "Since it was last heard.",
     [](M m) { return m.silent_seconds; });
  of("lockstep_worker_rounds_contributed_total", "counter", "Closed rounds that it is in.",
     [](M m) { return m.rounds_contributed; });
  of("lockstep_worker_rounds_excluded_total", "counter",
     "Closed rounds in which it had units and that it is not in.",
     [](M m) { return m.rounds_excluded; });
  of("lockstep_worker_held_up_seconds_total", "counter",
     "How long rounds waited for it after their median contributor.",
     [](M m) { return m.held_up_seconds; });
  of("lockstep_worker_held_up_by_data_seconds_total", "counter",
     "The part of it that is due to units that cost more than those of others.",
     [](M m) { return m.held_up_by_data_seconds; });
  of("lockstep_worker_run_seconds_total", "counter",
     "How long its runs took, reading samples included.", [](M m) { return Real(m.run_seconds); });
  return text + MemoryText(status) + ReadingText(status) + GradientsText(status);
}

}  // namespace

void JobMetrics::Histogram::Add(double seconds) {
  const auto* const bound = std::ranges::lower_bound(kBounds, seconds);
  if (bound != kBounds.end()) ++counts.at(static_cast<std::size_t>(bound - kBounds.begin()));
  ++count;
  sum += seconds;
}

std::string JobMetrics::HistogramText(const char* name, const char* help,
                                      const Histogram& histogram) {
  std::string text = Head(name, "histogram", help);
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < kBounds.size(); ++i) {
    below += histogram.counts.at(i);
    text += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, kBounds.at(i), below);
  }
  text += fmt::format("{}_bucket{{le=\"+Inf\"}} {}\n", name, histogram.count);
  text += fmt::format("{}_sum {}\n{}_count {}\n", name, histogram.sum, name, histogram.count);
  return text;
}

void JobMetrics::Note(const RoundRecord& record) {
  rounds_.Add(record.commit - record.start);
  if (record.applied) exchanges_.Add(*record.applied - record.commit);
  attempts_ += record.attempts.empty() ? 0 : record.attempts.size() - 1;
  moves_ += record.moved.size();
}

std::string JobMetrics::Text(const JobStatus& status, std::span<const PathRecord> links) const {
  std::string text = JobText(status);
  text += HistogramText("lockstep_round_seconds",
                        "From the plan of a round, which comes with the commit of the one before, "
                        "to its commit.",
                        rounds_);
  text +=
      HistogramText("lockstep_exchange_seconds",
                    "From the commit of a round until the last worker has applied it.", exchanges_);
  text += One("lockstep_attempts_total", "counter",
              "Attempts at a round beyond its first one, since this coordinator began.", attempts_);
  text += One("lockstep_moves_total", "counter",
              "Ranges of samples that were moved from one worker to another, since this "
              "coordinator began.",
              moves_);
  return text + WorkersText(status) + LinksText(links);
}

}  // namespace lockstep::coordinator
