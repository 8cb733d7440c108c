// Internal to the codec: one list of a message's fields serves both ways, for writing them into its
// generated form and for reading them out of it. The list of Revoke is
//
//   void Fields(auto& f, Of<Revoke> auto& m) { f(m.round, m.from, m.order); }
//
// It names all fields, in the order of lockstep.proto. `f` is a Writer, and `m` is const, or it is
// a Reader, which fills `m`. A message has a Validate of its own for rules beyond the form of its
// fields; the Reader calls it.
#pragma once

#include <google/protobuf/reflection.h>

#include <algorithm>
#include <concepts>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "base/ini.h"
#include "transport/control/runs.h"
#include "transport/control/wire.h"

namespace lockstep::transport::control {

template <class M, class Message>
concept Of = std::same_as<std::remove_const_t<M>, Message>;

void Validate(const auto& /*message*/, Checks& /*checks*/) {}

// Wrappers for facts that the type of a field does not express. Each holds a reference to the
// field, const on the way out.

// A text for people or a name, cut to kMaxTextBytes. When it is received, it becomes one line
// without control characters, because logs and terminals show it unchanged.
template <class String>
struct Text {
  explicit Text(String& s) : text(s) {}
  String& text;
};

// The address to which others connect. Their logs show it as well, but an address with characters
// that cannot be shown is not valid.
template <class String>
struct Address {
  explicit Address(String& s) : address(s) {}
  String& address;
};

// A list of messages or texts, of at most so many.
template <class List>
struct AtMost {
  AtMost(std::size_t n, List& l) : most(n), list(l) {}
  std::size_t most;
  List& list;
};

// The fields of one generated message, in turn.
class FieldsInTurn {
 public:
  explicit FieldsInTurn(const protobuf::Message& message) : all_(message.GetDescriptor()) {}

  const protobuf::FieldDescriptor* Next() {
    LOCKSTEP_CHECK(next_ < all_->field_count(), "{} has no more fields", all_->full_name());
    return all_->field(next_++);
  }
  void CheckAllNamed() const {
    LOCKSTEP_CHECK(next_ == all_->field_count(), "a field of {} is in no list", all_->full_name());
  }

 private:
  const protobuf::Descriptor* all_;
  int next_ = 0;
};

class Writer {
 public:
  explicit Writer(protobuf::Message* out) : out_(out), to_(*out->GetReflection()), fields_(*out) {}

  void operator()(const auto&... fields) {
    (Put(fields), ...);
    fields_.CheckAllNamed();
  }

 private:
  void Put(bool v) { to_.SetBool(out_, fields_.Next(), v); }
  void Put(std::uint32_t v) { to_.SetUInt32(out_, fields_.Next(), v); }
  void Put(std::uint64_t v) { to_.SetUInt64(out_, fields_.Next(), v); }
  void Put(std::int64_t v) { to_.SetInt64(out_, fields_.Next(), v); }
  void Put(float v) { to_.SetFloat(out_, fields_.Next(), v); }
  void Put(double v) { to_.SetDouble(out_, fields_.Next(), v); }
  void Put(StateSource v) { to_.SetEnumValue(out_, fields_.Next(), static_cast<int>(v)); }
  void Put(ExchangeAlgorithm v) { to_.SetEnumValue(out_, fields_.Next(), static_cast<int>(v)); }
  void Put(Reduction v) { to_.SetEnumValue(out_, fields_.Next(), static_cast<int>(v)); }
  void Put(msg::Followed::Part v) { to_.SetEnumValue(out_, fields_.Next(), static_cast<int>(v)); }
  template <class Tag, class Rep>
  void Put(Id<Tag, Rep> id) {
    Put(std::conditional_t<sizeof(Rep) == 8, std::uint64_t, std::uint32_t>{id.value});
  }
  void PutString(std::string v) { to_.SetString(out_, fields_.Next(), std::move(v)); }
  void Put(const std::string& v) { PutString(v); }
  template <class String>
  void Put(const Text<String>& v) {
    PutString(v.text.substr(0, kMaxTextBytes));
  }
  template <class String>
  void Put(const Address<String>& v) {
    PutString(v.address);
  }
  void Put(const std::vector<std::byte>& v) {
    PutString(std::string(reinterpret_cast<const char*>(v.data()), v.size()));
  }
  void Put(const std::vector<std::uint64_t>& v) {
    const auto* field = fields_.Next();
    for (const std::uint64_t one : v) to_.AddUInt64(out_, field, one);
  }
  void Put(const std::vector<double>& v) {
    const auto* field = fields_.Next();
    for (const double one : v) to_.AddDouble(out_, field, one);
  }
  void Put(const std::vector<Assignment>& v) {  // fields of a plan: they take two fields
    const AssignmentRuns runs = ToRuns(v);
    PutAll(runs.members);
    PutAll(runs.units);
  }
  template <class Item>
  void Put(const std::vector<Item>& v) {
    PutAll(ToRuns(v));
  }
  template <class List>
  void Put(const AtMost<List>& v) {
    PutAll(v.list);
  }
  template <class T>
  void Put(const std::optional<T>& v) {
    if (v) {
      Put(*v);
    } else {
      fields_.Next();
    }
  }
  template <class Message>
  void Put(const Message& v) {
    Writer part_writer(to_.MutableMessage(out_, fields_.Next()));
    Fields(part_writer, v);
  }

  template <class Item>
  void PutAll(const std::vector<Item>& list) {
    const auto* field = fields_.Next();
    for (const Item& item : list) {
      if constexpr (std::same_as<Item, std::string>) {
        to_.AddString(out_, field, item.substr(0, kMaxTextBytes));
      } else {
        Writer item_writer(to_.AddMessage(out_, field));
        Fields(item_writer, item);
      }
    }
  }

  protobuf::Message* out_;
  const protobuf::Reflection& to_;
  FieldsInTurn fields_;
};

class Reader;
template <class Message>
void Read(const protobuf::Message& in, Message& out, Checks& checks);

// After the first error, the values that are read mean nothing any more; their size stays bounded.
class Reader {
 public:
  Reader(const protobuf::Message& in, Checks& checks)
      : in_(in), from_(*in.GetReflection()), fields_(in), checks_(checks) {}

  void operator()(auto&&... fields) {
    (Get(fields), ...);
    fields_.CheckAllNamed();
  }

 private:
  void Get(bool& v) { v = from_.GetBool(in_, fields_.Next()); }
  void Get(std::uint32_t& v) { v = from_.GetUInt32(in_, fields_.Next()); }
  void Get(std::uint64_t& v) { v = from_.GetUInt64(in_, fields_.Next()); }
  void Get(std::int64_t& v) { v = from_.GetInt64(in_, fields_.Next()); }
  void Get(float& v) { v = from_.GetFloat(in_, fields_.Next()); }
  void Get(double& v) { v = from_.GetDouble(in_, fields_.Next()); }
  void Get(StateSource& v) {
    const int source = from_.GetEnumValue(in_, fields_.Next());
    checks_.Require(wire::StateSource_IsValid(source), "an unknown source of state");
    if (checks_.wrong().empty()) v = static_cast<StateSource>(source);
  }
  void Get(ExchangeAlgorithm& v) {
    const int algorithm = from_.GetEnumValue(in_, fields_.Next());
    checks_.Require(wire::ExchangeAlgorithm_IsValid(algorithm), "an unknown algorithm");
    if (checks_.wrong().empty()) v = static_cast<ExchangeAlgorithm>(algorithm);
  }
  void Get(Reduction& v) {
    const int reduction = from_.GetEnumValue(in_, fields_.Next());
    checks_.Require(wire::Reduction_IsValid(reduction), "an unknown reduction");
    if (checks_.wrong().empty()) v = static_cast<Reduction>(reduction);
  }
  void Get(msg::Followed::Part& v) {
    const int part = from_.GetEnumValue(in_, fields_.Next());
    checks_.Require(wire::FollowedPart_IsValid(part), "an unknown part of what is followed");
    if (checks_.wrong().empty()) v = static_cast<msg::Followed::Part>(part);
  }
  template <class Tag, class Rep>
  void Get(Id<Tag, Rep>& id) {
    std::conditional_t<sizeof(Rep) == 8, std::uint64_t, std::uint32_t> v = 0;
    Get(v);
    id = Id<Tag, Rep>(v);
  }
  void Get(PartIndex& part) {
    const std::uint32_t v = from_.GetUInt32(in_, fields_.Next());
    checks_.Require(v < static_cast<std::uint32_t>(kMaxParts), "a part that cannot be");
    part = PartIndex(static_cast<std::uint8_t>(v));
  }
  void Get(std::string& v) { v = NextString(); }
  template <class String>
  void Get(Text<String>& v) {
    GetText(NextString(), v.text);
  }
  template <class String>
  void Get(Address<String>& v) {
    const std::string& address = NextString();
    checks_.Require(address.size() <= kMaxAddressBytes, "an address that is too long");
    checks_.Require(IsPrintable(address), "an address with unprintable characters");
    if (checks_.wrong().empty()) v.address = address;
  }
  void Get(std::vector<std::byte>& v) {
    const std::string& bytes = NextString();
    const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
    v.assign(begin, begin + bytes.size());
  }
  void Get(std::vector<std::uint64_t>& v) {
    const auto all = from_.GetRepeatedFieldRef<std::uint64_t>(in_, fields_.Next());
    v.assign(all.begin(), all.end());
  }
  void Get(std::vector<double>& v) {
    const auto all = from_.GetRepeatedFieldRef<double>(in_, fields_.Next());
    v.assign(all.begin(), all.end());
  }
  void Get(std::vector<Assignment>& v) {  // fields of a plan: they take two fields
    AssignmentRuns runs;
    GetRuns(runs.members);
    GetRuns(runs.units);
    v = FromRuns(runs, checks_);
  }
  template <class Item>
  void Get(std::vector<Item>& v) {
    decltype(ToRuns(v)) runs;
    GetRuns(runs);
    v = FromRuns(runs, checks_);
  }
  template <class List>
  void Get(AtMost<List>& v) {
    const auto* field = fields_.Next();
    checks_.Require(Size(field) <= v.most, "too many entries");
    GetAll(field, v.most, v.list);
  }
  template <class T>
  void Get(std::optional<T>& v) {
    FieldsInTurn ahead = fields_;
    if (from_.HasField(in_, ahead.Next())) {
      Get(v.emplace());
    } else {
      fields_ = ahead;
    }
  }
  template <class Message>
  void Get(Message& v) {
    Read(from_.GetMessage(in_, fields_.Next()), v, checks_);
  }

  void GetText(const std::string& text, std::string& v) {
    checks_.Require(text.size() <= kMaxTextBytes, "a text that is too long");
    if (checks_.wrong().empty()) v = Printable(text);
  }

  const std::string& NextString() {
    return from_.GetStringReference(in_, fields_.Next(), &scratch_);
  }
  std::size_t Size(const protobuf::FieldDescriptor* field) const {
    return static_cast<std::size_t>(from_.FieldSize(in_, field));
  }
  // More runs than a list has items are refused before they are read.
  template <class Run>
  void GetRuns(std::vector<Run>& runs) {
    GetAll(fields_.Next(), kMaxUnits + 1, runs);
  }
  template <class Item>
  void GetAll(const protobuf::FieldDescriptor* field, std::size_t most, std::vector<Item>& list) {
    const auto size = static_cast<int>(std::min(Size(field), most));
    for (int i = 0; i < size && checks_.wrong().empty(); ++i) {
      if constexpr (std::same_as<Item, std::string>) {
        GetText(from_.GetRepeatedStringReference(in_, field, i, &scratch_), list.emplace_back());
      } else {
        Read(from_.GetRepeatedMessage(in_, field, i), list.emplace_back(), checks_);
      }
    }
  }

  const protobuf::Message& in_;
  const protobuf::Reflection& from_;
  FieldsInTurn fields_;
  Checks& checks_;
  std::string scratch_;  // where the library may put a text that it does not hold as a string
};

template <class Message>
void Read(const protobuf::Message& in, Message& out, Checks& checks) {
  Reader reader(in, checks);
  Fields(reader, out);
  Validate(out, checks);
}

}  // namespace lockstep::transport::control
