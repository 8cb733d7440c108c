// The lines and files of a run directory as JSON text. People and scripts build on their form:
// docs/reference/run-directory.md describes it.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "coordinator/job/records.h"

namespace lockstep::coordinator {

std::string RoundLine(const RoundRecord& record);  // one line of rounds.jsonl, without the newline
// Reads all but the number of the update, which the line does not have. kInvalid, one line.
Result<RoundRecord> RoundFromLine(std::string_view line);
std::string EvaluationLine(const EvaluationRecord& record);  // one line of evaluations.jsonl
std::string SummaryText(const JobResult& result);            // summary.json
std::string StatusText(const JobStatus& status);             // GET /status

}  // namespace lockstep::coordinator
