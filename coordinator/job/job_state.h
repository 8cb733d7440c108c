// The job's state after a closed round, as a checkpoint keeps it beside the tensors. The form on
// disk is in checkpoint/checkpoint_manifest.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/ids.h"
#include "base/messages.h"
#include "coordinator/job/records.h"
#include "coordinator/job/tensor_list.h"

namespace lockstep::coordinator {

// The state of a Sampler (round/sampler.h) between two rounds.
struct SamplerState {
  std::uint64_t epoch_samples = 0;
  Epoch epoch;
  std::vector<SampleRange> uncounted;  // of the epoch; ascending
  bool operator==(const SamplerState&) const = default;
};

struct JobState {
  RoundId next_round;  // the first that is not in the tensors
  std::uint64_t updates = 0;
  SamplerState sampler;
  Totals totals;
  std::string dataset_digest;
  std::uint64_t test_samples = 0;
  std::uint64_t parameter_count = 0;
  std::uint32_t state_tensors = 0;
  TensorList tensors = {};                           // as in Ready
  std::vector<std::string> state_names = {};         // as in Ready
  std::map<std::string, std::string> settings = {};  // core/resume_rules.h
  Digest128 digest = {};  // of the values of all tensors, in the order of StateChunk
};

// The state after a commit, which the coordinator notes before anybody hears of the commit. With
// it, a coordinator that takes over continues from the parameters that workers hold.
struct JournalEntry {
  // They name the state: HeldParameters{term, state.next_round, attempt}. No attempt: the job
  // went on from here in this term, and all entries before it that are of later rounds are void.
  Term term;
  std::optional<Attempt> attempt;
  JobState state;  // but for the digest
  // Of the round that was committed, as if it were closed; null: none was.
  std::shared_ptr<const RoundRecord> record;
  // The run-time requests that are in force: a policy's name, SPECs of slow-downs, one a line.
  std::string policy = {};
  std::string slowdowns = {};
  // Those that the next coordinator waits for, ascending: all but newcomers that are not ready.
  // Empty: an earlier version has not noted them.
  std::vector<WorkerId> members = {};
  // With optimizer.replicas: all holders had the sums, and were or are to be told to apply them.
  bool decided = false;
  // The findings of audits. Workers on these devices are not taken into the job again.
  AuditRecord audit = {};
  WrongDevices wrong_devices = {};

  HeldParameters held() const { return {term, state.next_round, attempt}; }
};

// For messages: "[3, 4]", "[momentum]".
std::string InWords(const std::vector<std::uint64_t>& shape);
std::string InWords(const std::vector<std::string>& names);

// Samples of all epochs so far that are not served again: they were counted or skipped.
std::uint64_t SettledSamples(const SamplerState& sampler);

}  // namespace lockstep::coordinator
