// Internal to the codec: the values that several messages share, and the checks.
#pragma once

#include <google/protobuf/arena.h>
#include <google/protobuf/message.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/messages.h"
#include "lockstep.pb.h"
#include "transport/control/codec.h"

namespace lockstep::transport::control {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

// A message of the generated code for the length of a call. Its parts come out of one block, most
// of the time on the stack: allocating each by itself costs more than reading it.
template <class Message>
class OnArena {
 public:
  OnArena() : arena_(block_.data(), block_.size()) {
    message_ = google::protobuf::Arena::CreateMessage<Message>(&arena_);
  }
  OnArena(const OnArena&) = delete;
  OnArena& operator=(const OnArena&) = delete;

  Message* get() { return message_; }
  Message* operator->() { return message_; }
  const Message& operator*() const { return *message_; }

 private:
  alignas(8) std::array<char, 2048> block_;  // NOLINT: filled by the arena
  google::protobuf::Arena arena_;
  Message* message_ = nullptr;
};

// Parses `bytes`; false where they are no such message, or hold more values than any message of
// ours can: parsed, a value takes up to forty times the bytes that it came in, so the bound on
// those is not enough.
bool ParseBounded(std::span<const std::byte> bytes, google::protobuf::Message* into);

// Remembers the first thing that is wrong with a message under decoding.
class Checks {
 public:
  void Require(bool good, std::string_view what) {
    if (!good && wrong_.empty()) wrong_ = what;
  }
  const std::string& wrong() const { return wrong_; }

 private:
  std::string wrong_;
};

// A text for people or a name, cut to what is taken.
inline std::string_view Cut(std::string_view text) { return text.substr(0, kMaxTextBytes); }

void Put(const SampleRange& in, wire::SampleRange* out);
void Put(const Unit& in, wire::Unit* out);
void Put(const MemberId& in, wire::MemberId* out);
void Put(const OwnerMap& in, wire::OwnerMap* out);
void Put(const Plan& in, wire::Plan* out);
void Put(const StateChunk& in, wire::StateChunk* out);

SampleRange Get(const wire::SampleRange& in, Checks& checks);
Unit Get(const wire::Unit& in, Checks& checks);
MemberId Get(const wire::MemberId& in);
OwnerMap Get(const wire::OwnerMap& in, Checks& checks);
Plan Get(const wire::Plan& in, Checks& checks);
StateChunk Get(const wire::StateChunk& in, Checks& checks);
PartIndex GetPart(std::uint32_t part, Checks& checks);
// A text of at most kMaxTextBytes, on one line and without control characters: it goes into logs
// and onto terminals as it is. An address.
std::string GetText(const std::string& in, Checks& checks);
std::string GetAddress(const std::string& in, Checks& checks);
// At most kMaxSlowdownBytes.
std::string GetSlowdowns(const std::string& in, Checks& checks);

template <class In, class Field>
void PutAll(const std::vector<In>& in, Field* out) {
  out->Reserve(static_cast<int>(in.size()));
  for (const In& item : in) Put(item, out->Add());
}

// Of at most `most` items; stops at the first thing that is wrong.
template <class Out, class Field, class GetOne>
std::vector<Out> GetAll(const Field& in, std::size_t most, Checks& checks, GetOne&& get) {
  std::vector<Out> out;
  checks.Require(static_cast<std::size_t>(in.size()) <= most, "too many entries");
  if (!checks.wrong().empty()) return out;
  out.reserve(static_cast<std::size_t>(in.size()));
  for (const auto& item : in) {
    out.push_back(get(item));
    if (!checks.wrong().empty()) return {};
  }
  return out;
}

// Lists as runs (runs.cc). What is taken is in order and bounded, however few bytes it came in.
template <class Run>
using Runs = google::protobuf::RepeatedPtrField<Run>;

void PutMembers(const std::vector<MemberId>& in, Runs<wire::MemberRun>* out);
void PutOwners(const std::vector<OwnerShare>& in, Runs<wire::OwnerRun>* out);
void PutParts(const std::vector<CommittedPart>& in, Runs<wire::PartRun>* out);
void PutReceived(const std::vector<ReceivedPart>& in, Runs<wire::ReceivedRun>* out);
void PutUnits(const std::vector<Unit>& in, Runs<wire::UnitRun>* out);
void PutAssignments(const std::vector<Assignment>& in, wire::Plan* out);

// Ascending, each worker once.
std::vector<MemberId> GetMembers(const Runs<wire::MemberRun>& in, Checks& checks);
std::vector<OwnerShare> GetOwners(const Runs<wire::OwnerRun>& in, Checks& checks);
std::vector<Assignment> GetAssignments(const wire::Plan& in, Checks& checks);
// By worker, then part.
std::vector<CommittedPart> GetParts(const Runs<wire::PartRun>& in, Checks& checks);
std::vector<ReceivedPart> GetReceived(const Runs<wire::ReceivedRun>& in, Checks& checks);
std::vector<Unit> GetUnits(const Runs<wire::UnitRun>& in, Checks& checks);

}  // namespace lockstep::transport::control
