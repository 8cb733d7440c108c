// A job's config.
#include "base/ini.h"

#include "base/check.h"
#include "base/job_options.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {

bool Run(Bytes bytes) {
  const auto config = ParseJobConfig(Text(bytes), "job.ini");
  if (!config) {
    const std::string& message = config.error().message;
    LOCKSTEP_CHECK(config.error().code == ErrorCode::kInvalid && OneLine(message), "{}", message);
    LOCKSTEP_CHECK(IsPrintable(message), "{}", message);
    return false;
  }
  const std::string text = ToIni(*config);
  const auto back = ParseJobConfig(text, "again");
  LOCKSTEP_CHECK(back.ok(), "{}", back.ok() ? "" : back.error().message);
  LOCKSTEP_CHECK(ToIni(*back) == text, "a config changes on the way");
  return true;
}

std::vector<std::string> Seeds() {
  return {"", ToIni(JobConfig{}),
          "\xef\xbb\xbf# a comment\r\n[job]\nrounds = 40 ; so many\nunits=16\n"
          "[model]\nwidths = 32,64\n[data]\nformat = synthetic\npath = \" a \\\"b\\\" \"\n"
          "[emulate]\nunit_time = 20ms\n[policy]\nname = backup+flexrr\n[backup]\nworkers=auto\n"};
}

}  // namespace lockstep::fuzz
