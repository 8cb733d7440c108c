// Small messages of other workers.
#include "worker/core/peer_messages.h"

#include <cstring>

#include "base/check.h"
#include "tests/fuzz/target.h"

namespace lockstep::fuzz {

namespace {

// In a job whose contributions have numbers of so many bytes.
bool Check(Bytes bytes, std::uint64_t number_bytes) {
  const auto decoded = worker::DecodePeerMessage(std::as_bytes(bytes), number_bytes);
  if (!decoded) {
    LOCKSTEP_CHECK(OneLine(decoded.error().message), "{}", decoded.error().message);
    return false;
  }
  const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
  const auto floats = decoded->floats;
  LOCKSTEP_CHECK(floats.empty() ||
                 (floats.data() >= begin && floats.data() + floats.size() <= begin + bytes.size()));
  std::vector<std::byte> again = worker::EncodePeerMessage(decoded->message);
  again.insert(again.end(), floats.begin(), floats.end());
  LOCKSTEP_CHECK(
      again.size() == bytes.size() && std::memcmp(again.data(), bytes.data(), again.size()) == 0,
      "a message changes on the way");
  return true;
}

}  // namespace

bool Run(Bytes bytes) {
  const bool wide = Check(bytes, sizeof(float));
  return Check(bytes, sizeof(std::uint16_t)) || wide;
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  const auto add = [&seeds](const worker::PeerMessage& message, std::size_t floats = 0) {
    const auto bytes = worker::EncodePeerMessage(message);
    seeds.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    seeds.back().append(floats * sizeof(float), '\1');
  };
  worker::PartReady ready;
  ready.round = RoundId(7);
  ready.buckets = 3;
  ready.sealed = true;
  add(ready);
  ready.inlined.ranges = {{0, 4}, {16, 2}};
  add(ready, 6);
  worker::SumReady sum;
  sum.term = Term(1);
  sum.round = RoundId(7);
  add(sum);
  sum.inlined.ranges = {{8, 3}};
  add(sum, 3);
  sum.passed = worker::PassedOn{1, true, 3};
  add(sum, 3);
  add(worker::SumWant{Term(1), RoundId(3), Attempt(1)});
  add(worker::MapState{true});
  add(worker::StateWant{2, 9});
  add(worker::StateReady{2, 9, Attempt(1), 1, 1, false});
  add(worker::StateTaken{4});
  return seeds;
}

}  // namespace lockstep::fuzz
