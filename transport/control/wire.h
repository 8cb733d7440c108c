// Internal to the codec: parses bytes into messages of the generated code, and has the checks.
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

namespace protobuf = google::protobuf;

// A message of the generated code for the length of a call. Its parts come out of one block, mostly
// on the stack: allocating each by itself costs more than reading it.
template <class Message>
class OnArena {
 public:
  OnArena() : arena_(block_.data(), block_.size()) {
    message_ = protobuf::Arena::CreateMessage<Message>(&arena_);
  }
  OnArena(const OnArena&) = delete;
  OnArena& operator=(const OnArena&) = delete;

  Message* get() { return message_; }
  Message* operator->() { return message_; }
  const Message& operator*() const { return *message_; }

 private:
  alignas(8) std::array<char, 2048> block_;  // NOLINT: filled by the arena
  protobuf::Arena arena_;
  Message* message_ = nullptr;
};

// Parses `bytes`; false where they are no such message, or hold more values than any message of
// ours can. A parsed value takes up to forty times its encoded bytes, so the bound on those is not
// enough.
bool ParseBounded(std::span<const std::byte> bytes, protobuf::Message* into);

// Remembers the first error of a message under decoding.
class Checks {
 public:
  void Require(bool good, std::string_view what) {
    if (!good && wrong_.empty()) wrong_ = what;
  }
  const std::string& wrong() const { return wrong_; }

 private:
  std::string wrong_;
};

}  // namespace lockstep::transport::control
