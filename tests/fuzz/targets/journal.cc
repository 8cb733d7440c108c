// What a coordinator that takes over reads of the one before.
#include "coordinator/journal/journal.h"

#include <span>
#include <utility>

#include "base/check.h"
#include "base/digest.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {

namespace {

// What is behind the checksums is to be read as well: each line gets its own.
std::string WithChecksums(std::string_view text) {
  std::string all;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    DigestStream digest;
    digest.Update(std::as_bytes(std::span(line)));
    all += ToString(digest.Digest()) + " " + std::string(line);
    if (end == std::string_view::npos) break;
    all += '\n';
    text.remove_prefix(end + 1);
  }
  return all;
}

}  // namespace

bool Run(Bytes bytes) {
  (void)coordinator::JournalFile::Parse(Text(bytes));
  const auto contents = coordinator::JournalFile::Parse(WithChecksums(Text(bytes)));
  if (!contents) {
    LOCKSTEP_CHECK(OneLine(contents.error().message), "{}", contents.error().message);
    return false;
  }
  RoundId before;
  for (const coordinator::JournalEntry& entry : contents->entries) {
    const coordinator::JobState& state = entry.state;
    LOCKSTEP_CHECK(state.next_round >= before, "entries that go back");
    LOCKSTEP_CHECK(state.parameter_count > 0 && !state.sampler.uncounted.empty());
    LOCKSTEP_CHECK(!entry.record || entry.record->round.Next() == state.next_round,
                   "the record of another round");
    before = state.next_round;
  }
  return true;
}

std::vector<std::string> Seeds() {
  return {
      R"({"run_id":"a1","term":2})"
      "\n"
      R"({"term":2,"attempt":0,"policy":"flexrr","slowdowns":"worker=1,factor=2\n","job":{)"
      R"("dataset_digest":"abc","test_samples":0,"parameter_count":6,"state_tensors":1,"tensors":[)"
      R"({"name":"w","shape":[2,3]}],"state_names":["momentum"],"settings":{"policy.name":"full"}},)"
      R"("state":{"next_round":1,"updates":1,"epoch":0,"epoch_samples":100,"uncounted":[[10,100]],)"
      R"("rounds":1,"epochs":0,"samples_counted":10,"samples_dropped":0,"samples_requeued":0,)"
      R"("samples_moved":0},"record":null})"
      "\n"
      R"({"term":3,"attempt":null,"policy":"","slowdowns":"","state":{"next_round":1,"updates":1,)"
      R"("epoch":0,"epoch_samples":100,"uncounted":[[10,100]],"rounds":1,"epochs":0,)"
      R"("samples_counted":10,"samples_dropped":0,"samples_requeued":0,"samples_moved":0},)"
      R"("record":null})"
      "\n"};
}

}  // namespace lockstep::fuzz
