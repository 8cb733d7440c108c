// lockstep-doctor: checks whether this machine is fit for jobs, with remedies.

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "base/free_memory.h"
#include "base/log.h"
#include "base/options.h"
#include "base/program_options.h"
#include "tools/doctor/collect.h"
#include "tools/doctor/cuda.h"
#include "tools/doctor/judge.h"
#include "tools/doctor/measure.h"
#include "tools/doctor/render.h"
#ifdef LOCKSTEP_HAVE_UCX
#include "transport/ucx/report.h"
#endif

namespace lockstep::doctor {
namespace {

constexpr int kStatusProblem = 1;
constexpr int kStatusUsage = 2;

int Wrong(const std::string& message) {
  std::fprintf(stderr, "lockstep-doctor: %s\n", message.c_str());
  return kStatusUsage;
}

UcxFacts AskUcx() {
  UcxFacts facts;
#ifdef LOCKSTEP_HAVE_UCX
  transport::ucx::Report report = transport::ucx::Describe();
  facts.built = true;
  facts.built_with = std::move(report.built_with);
  facts.version = std::move(report.version);
  facts.library = std::move(report.library);
  facts.error = std::move(report.error);
  facts.components = std::move(report.components);
  for (const auto& way : report.ways) {
    facts.ways.push_back({way.transport, way.device, way.rdma});
  }
  facts.cuda_memory = report.cuda_memory;
#endif
  return facts;
}

bool ForAPerson() {
  const char* terminal = std::getenv("TERM");
  return isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr && terminal != nullptr &&
         std::string_view(terminal) != "dumb";
}

int Main(const std::vector<std::string>& arguments) {
  InitLogging("doctor", "error");
  if (arguments.size() == 4 && arguments[0] == kMeasure) {
    return MeasureHere(arguments[1], arguments[2], arguments[3]);
  }
  std::string json;
  double patience_s = 4;
  bool help = false;
  bool version = false;
  OptionTable table;
  table.Group("Options", "");
  table.Add("json", &json, Text("FILE", "a file, or - for standard output"),
            "write the findings as JSON, to a file beside the text or (-) instead of it");
  table.Add("patience", &patience_s, DurationSeconds(0.1, 600),
            "how long a measurement of bandwidth may take");
  table.AddSwitch("help", &help, "print this and end");
  table.AddSwitch("version", &version, "print the version and end");
  if (const Status read = table.ReadCommandLine(arguments); !read)
    return Wrong(read.error().message);
  if (help) {
    fmt::print(
        "lockstep-doctor: whether this machine is fit for jobs, and what to do where it is not\n"
        "{}\nExit status: 0 no problem, 1 a problem, 2 wrong usage.\n",
        table.Help());
    return 0;
  }
  if (version) {
    fmt::print("lockstep-doctor {}\n", Version());
    return 0;
  }
  std::ofstream file;
  if (!json.empty() && json != "-") {
    file.open(json);
    if (!file) return Wrong(json + ": cannot be written");
  }

  Facts facts = LookAround();
  facts.version = Version();
  facts.cuda = AskCuda();
  facts.ucx = AskUcx();
  facts.bandwidth = MeasureAll(facts, FromSeconds(patience_s));
  const std::vector<Line> lines = Judge(facts);
  if (json == "-") {
    std::fputs(RenderJson(facts, lines).c_str(), stdout);
  } else {
    std::fputs(RenderText(lines, ForAPerson()).c_str(), stdout);
  }
  if (file.is_open()) {
    file << RenderJson(facts, lines);
    if (!file.flush()) return Wrong(json + ": cannot be written");
  }
  return Worst(lines) == Verdict::kProblem ? kStatusProblem : 0;
}

}  // namespace
}  // namespace lockstep::doctor

int main(int argc, char** argv) {
  lockstep::EndWhenOutOfResources("lockstep-doctor");
  return lockstep::doctor::Main(lockstep::Arguments(argc, argv));
}
