// Lines of slow-downs, and the bytes as the file of a trace.
#include "base/slowdown.h"

#include "base/check.h"
#include "base/slowdown_trace.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {

bool Run(Bytes bytes) {
  const std::string text(Text(bytes));
  const auto trace = ParseTrace(text, "trace");
  if (trace.ok()) LOCKSTEP_CHECK(!trace->empty() && trace->size() <= kMaxTracePoints);
  const auto specs = ParseSlowdownLines(text);
  if (!specs.ok()) {
    LOCKSTEP_CHECK(OneLine(specs.error().message));
    return trace.ok();
  }
  for (const SlowdownSpec& spec : *specs) {
    const auto back = ParseSlowdownSpec(ToString(spec));
    LOCKSTEP_CHECK(back.ok() && *back == spec, "{} does not come back", ToString(spec));
  }
  // Whatever is accepted can be lived with.
  const Duration nominal = std::chrono::milliseconds(20);
  const SlowdownModel model(*specs, 4);
  for (const std::int64_t s : {0, 1, 1000, 1'000'000}) {
    const Duration took = model.Lengthen(WorkerId(1), RoundId(static_cast<std::uint64_t>(s)), 3,
                                         std::chrono::seconds(s), nominal);
    LOCKSTEP_CHECK(took >= nominal);
  }
  return true;
}

std::vector<std::string> Seeds() {
  return {"worker=2,factor=4,from=10s,for=5s,seed=7\nfactor=2",
          "pattern=slow-worker,p=0.1,factor=2..5,delay=10ms..50ms",
          "pattern=disrupted,length=20s,gap=5s,factor=3,workers=8",
          "pattern=power-law,alpha=1.5,max=10\npattern=pause,every=10s,length=1s",
          "pattern=delay,p=0.02,times=18",
          "pattern=trace,points=0:1;10:4;12.5:1,loop=1",
          "# a trace\n0 1\n2.5 4\n10 1\n"};
}

}  // namespace lockstep::fuzz
