// The options of a job: base/job_config.h as INI text, command line, help and reference page.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/job_config.h"
#include "base/options.h"
#include "base/result.h"

namespace lockstep {

// Slots that a job may have.
inline constexpr std::uint32_t kMaxWorkers = 16384;

// A value from outside the file: "--key=value" of a command line, "--set key=value".
struct Setting {
  std::string key;
  std::string value;
};

// Reads INI text on top of the defaults, applies the settings over it, and checks the result as a
// whole. `name` stands for the file in messages. Errors are kInvalid with one line.
Result<JobConfig> ParseJobConfig(std::string_view text, const std::string& name,
                                 std::span<const Setting> settings = {});

// Reads the same from a file; an empty path: defaults and settings only.
Result<JobConfig> LoadJobConfig(const std::string& path, std::span<const Setting> settings = {});

// The whole config as INI text; ParseJobConfig gives the same config back, exactly.
std::string ToIni(const JobConfig& config);

// Checks combinations that no single option can judge. Returns kInvalid with one line.
Status CheckJobConfig(const JobConfig& config);

// Declares all options of a job, for programs that take them on their command line. `config` holds
// the defaults and must outlive the table.
void DeclareJobOptions(OptionTable& table, JobConfig* config);

// Keys that differ by host: a worker's own command line may overrule the job's value. (The device
// of a worker, --device, is its own alone and no option of the job.)
std::span<const std::string_view> WorkerKeys();

// All options in groups, for --help.
std::string JobOptionsDescription();

// Markdown tables of all options, for docs/reference/configuration.md.
std::string ConfigurationReference();

}  // namespace lockstep
