// Chooses the connection that gives way when strangers want more of them than there are places. So
// neither many idle connections nor many from one address keep out a client with a message. It
// belongs to the address that has most of them; silent ones go first, the oldest first. A client
// that has proven the job's secret gives its place back: it is no stranger any more.
//
// It is pure: time comes in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/time.h"

namespace lockstep::transport {

class Places {
 public:
  using Ticket = std::uint64_t;
  struct Options {
    std::size_t most = 0;
    // How long a connection may keep its place whoever else wants it. Use zero where a refused
    // client tries again by itself: then nobody ever waits behind strangers.
    Duration undisturbed_silent{};
    Duration undisturbed{};  // for one that has sent something
  };
  struct Taken {
    Ticket ticket = 0;
    std::optional<Ticket> ended;  // the connection that had this place: close it
  };

  explicit Places(const Options& options) : options_(options) {}

  // When a newcomer can be taken; not after `now`: at once.
  Time FreeAt(Time now) const;
  // `address`: as AddressKey returns it. Call it at the time that FreeAt returns.
  Taken Take(Time now, std::string address);
  // The connection has sent something.
  void Heard(Ticket ticket);
  // The connection has ended, or is no stranger any more. Without a place, nothing happens.
  void GiveBack(Ticket ticket) { taken_.erase(ticket); }

  std::size_t taken() const { return taken_.size(); }

 private:
  struct Place {
    std::string address;
    Time since;
    bool heard = false;
  };
  Duration Undisturbed(const Place& place) const {
    return place.heard ? options_.undisturbed : options_.undisturbed_silent;
  }
  Ticket WhoGivesWay(Time now, const std::string& newcomer) const;

  Options options_;
  Ticket last_ = 0;
  std::map<Ticket, Place> taken_;  // the oldest first
};

}  // namespace lockstep::transport
