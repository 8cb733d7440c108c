#include "coordinator/core/job_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "coordinator/round/planner.h"
#include "coordinator/round/sample_costs.h"

namespace lockstep::coordinator {
namespace {

constexpr std::uint32_t kNamed = 8;  // of the members that are missing, in one line

std::string TextOf(const RepeatedTimes::Verdict& found) {
  return fmt::format(
      "times belong to the data: samples that took long in one epoch take long again (correlation "
      "{:.2f} over {} runs), and runs differ by {:.0f} %. Slow machines are not the reason. Tell "
      "what samples cost (cost= of job.prepare, or JobDescription::costs), and take a policy that "
      "plans by costs: auto, flexrr or balance",
      found.correlation, found.runs, 100 * found.spread);
}

}  // namespace

// The recent speed for the progress line, as an exponentially weighted mean. And whether its
// numbers are what they should be.
void JobReport::OnClosed(const RoundRecord& record, bool costs_known) {
  LastClosed& last = last_closed_;
  // The first one's time is its own: what was before it was no training.
  const double took = record.commit - (last.commit > 0 ? last.commit : record.start);
  last.commit = record.commit;
  last.reason = record.reason;
  last.contributors = 0;
  for (const ContributorRecord& part : record.contributors)
    last.contributors += part.part.value == 0;
  last.excluded = record.excluded;
  for (const Outliers::Line& line : outliers_.OnClosed(record)) {
    job_->Log(line.warning ? LogLevel::kWarning : LogLevel::kInfo, "{}", line.text);
  }
  if (!costs_known) {
    if (const auto found = repeated_.OnClosed(record, job_->agreed().train_samples)) {
      job_->Log(LogLevel::kWarning, "{}", TextOf(*found));
    }
  }
  if (took <= 0) return;
  const double speed = static_cast<double>(record.samples) / took;
  last.samples_per_second =
      last.samples_per_second == 0 ? speed : 0.8 * last.samples_per_second + 0.2 * speed;
}

// `now` may be later than the last step: silence goes on while nothing happens.
JobStatus JobReport::Status(Time now) const {
  JobStatus status;
  status.job_id = job_->start.job_id;
  status.phase = job_->phase();
  status.updates = parts_.rounds->updates();
  status.loss = job_->closed().train_loss;
  status.metrics = job_->closed().metrics;
  if (parts_.evaluation->last()) status.test_accuracy = parts_.evaluation->last()->accuracy;
  status.samples_per_second = last_closed_.samples_per_second;
  status.contributors = last_closed_.contributors;
  status.excluded = static_cast<std::uint32_t>(last_closed_.excluded.size());
  status.workers = job_->start.workers;
  status.taking_part =
      job_->members.CountLive() - static_cast<std::uint32_t>(std::ranges::count_if(
                                      last_closed_.excluded, [this](const WorkerId& worker) {
                                        return job_->members.at(worker).live();
                                      }));
  status.policy = job_->policy().name;
  status.reason = last_closed_.reason;
  status.seconds = job_->SinceStart(now - job_->stopped());
  status.emulation = {job_->emulation().unit_seconds, parts_.slowdowns->InForce()};
  status.transport = job_->transport();
  status.totals = job_->closed().totals;
  if (const auto& resumed = job_->resumed()) {
    status.resumed = {resumed->totals, resumed->updates};
  }
  // The round that is computed is what people watch; between the last commit and the end it is the
  // one that is applied.
  if (const OpenRound* open = parts_.rounds->open()) {
    status.epoch = open->work().epoch();
    status.round = open->round();
  } else if (parts_.rounds->committed() != nullptr) {
    status.epoch = parts_.rounds->committed()->commit().epoch;
    status.round = parts_.rounds->committed()->round();
  } else if (job_->resumed() && !parts_.rounds->begun()) {
    status.epoch = job_->resumed()->sampler.epoch;
    status.round = job_->resumed()->next_round;
    status.updates = job_->resumed()->updates;
  }
  status.warnings = outliers_.Standing();
  if (job_->start.config.audit.share > 0) status.audit = parts_.rounds->audits();
  status.waiting_for =
      parts_.rounds->begun() ? parts_.rounds->Waiting() : parts_.initial_broadcast->Waiting();
  if (job_->phase() == Phase::kGathering || job_->phase() == Phase::kForming) {
    status.waiting_for = parts_.formation->Waiting();
  } else if (job_->phase() == Phase::kEnding) {
    status.waiting_for = parts_.ending->Waiting();
  }
  for (const Member& member : job_->members.all()) {
    if (member.id.incarnation.value > 0) status.members.push_back(StatusOf(member, now));
  }
  return status;
}

// Its units are those of the open round.
MemberStatus JobReport::StatusOf(const Member& member, Time now) const {
  MemberStatus row;
  row.member = member.id;
  row.state = member.behind() ? MemberState::kBehind : member.state;
  row.host = member.hello.host;
  row.pid = member.hello.pid;
  row.device = member.hello.device;
  if (const OpenRound* open = parts_.rounds->open()) {
    if (const policies::WorkerView* view = open->work().WorkerViewOf(member.id.worker)) {
      row.units_given = view->units_given;
      row.units_done = view->units_done;
    }
    row.owner = open->work().delivery().IsOwner(member.id.worker);
  }
  row.unit_seconds = Seconds(member.unit_times.mean);
  row.silent_seconds = Seconds(now - job_->stopped() - member.last_heard);
  if (member.connected()) row.resident_bytes = member.resident_bytes;
  row.run_seconds = Seconds(member.runs.took);
  if (member.runs.waited) row.input_wait_seconds = Seconds(*member.runs.waited);
  if (member.connected()) row.samples_ahead = member.runs.ahead;
  if (member.connected()) row.gradient_times = outliers_.Times(member.id.worker);
  row.rounds_contributed = member.rounds_contributed;
  row.rounds_excluded = member.rounds_excluded;
  row.held_up_seconds = Seconds(member.blocked_by_compute + member.blocked_by_data +
                                member.blocked_by_link + member.blocked_by_loss);
  row.held_up_by_data_seconds = Seconds(member.blocked_by_data);
  row.draining = member.draining && member.connected();
  if (member.away()) row.away = member.absence->reason;
  return row;
}

// Says why as far as it is known, and names a few of thousands.
std::string MissingWorkers(const Job& job) {
  std::string text;
  std::uint32_t count = 0;
  for (const Member& member : job.members.all()) {
    if (member.live() || ++count > kNamed) continue;
    std::string why = member.out_because;
    if (member.state != MemberState::kLost && !member.behind()) {
      why = Name(member.state);
    }
    if (why.empty()) why = "has not joined";
    text += fmt::format("{}worker {} ({})", text.empty() ? "" : ", ", member.id.worker, why);
  }
  return count > kNamed ? fmt::format("{} and {} others", text, count - kNamed) : text;
}

// I7: computed from the config alone, so that an operator knows them before the first worker comes.
std::vector<std::string> BoundsInWords(const StartParameters& start, std::size_t connections) {
  const std::uint64_t workers = start.workers;
  const std::uint64_t batch = start.config.job.global_batch;
  const std::uint64_t units = MostUnits(start);
  return {
      fmt::format("members: {} slots (--workers)", workers),
      fmt::format("connections without a Hello: {} (2 * workers + 16)", connections),
      fmt::format("units of a round: {} (units + given-back fragments, at most one a sample)",
                  std::min(batch, 2 * units)),
      fmt::format("receipts of a round: {} bits (2 * workers^2)", 2 * workers * workers),
      fmt::format("samples given back: {} (global_batch)", batch),
      fmt::format("costs of samples: {} (2 epochs, as far as programs say them)",
                  2 * SampleCosts::kMost),
      fmt::format("chunks of an evaluation: {} (4 * workers)", 4 * workers),
  };
}

}  // namespace lockstep::coordinator
