// The connections to one peer: the main one, which carries the messages, and the further ones, over
// which fetches are spread as well. They are one peer: it comes up when all of them are there, and
// ends with the first that ends. The group belongs to the data thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/tcp/connection.h"
#include "transport/tcp/frame.h"
#include "transport/transport.h"

namespace lockstep::transport::tcp {

class Group {
 public:
  // The place that this end connects to.
  struct Target {
    Connection::Endpoint endpoint;
    std::string address;
    Time until;               // the end of its tries
    std::uint32_t tries = 0;  // tries that have failed
  };

  // `target`: nullopt where the connections come in.
  Group(const MemberId& who, std::size_t connections, std::optional<Target> target)
      : who_(who), target_(std::move(target)), connections_(connections) {}
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const MemberId& who() const { return who_; }
  const std::optional<Target>& target() const { return target_; }
  std::size_t size() const { return connections_.size(); }
  Connection& main() const { return *connections_.front(); }
  PeerId peer() const { return main().peer(); }

  GroupId id{};
  bool ending = false;  // set by the owner

  // Adds it at the number of its place, which must be free.
  void Add(std::shared_ptr<Connection> connection);
  bool Has(std::size_t number) const { return connections_[number] != nullptr; }
  // The number of connections that have been settled with the peer.
  std::size_t settled() const;
  bool complete() const { return settled() == size(); }

  // Begins all of them from here on.
  void Begin(PeerId peer);
  // True when none of them is ending.
  bool up() const;
  // Ends those that have not ended.
  void End(const Error& reason);
  void CloseLater(const std::string& reason);

  PathReport path() const;
  Time last_heard() const;
  // Fetches of the peer that are not answered yet.
  std::size_t asked() const;
  // Fetches over the connection from which the fewest bytes are awaited. False: `window` is full.
  // Call it only when up().
  bool Fetch(FetchId fetch, const PieceName& name, std::span<std::byte> destination,
             std::size_t window);
  bool GiveUp(FetchId fetch);
  void Provide(std::uint64_t cookie, std::span<const std::byte> body);

 private:
  const MemberId who_;
  const std::optional<Target> target_;
  std::vector<std::shared_ptr<Connection>> connections_;  // by number; null: not there yet
  std::size_t next_ = 0;                                  // the first to be looked at for a fetch
};

}  // namespace lockstep::transport::tcp
