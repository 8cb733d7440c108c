// Which connection gives way when strangers want more of them than there are places, so that
// neither many idle connections nor many from one address keep out who has something to say. It is
// one of the address that has most of them: of those the silent ones first, the oldest first. Who
// has proven the job's secret gives its place back: it is no stranger any more.
//
// Pure: time comes in.
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
    // How long each may keep its place whoever else wants it. Zero where who is sent away tries
    // again by itself: then nobody ever waits behind strangers.
    Duration undisturbed_silent{};
    Duration undisturbed{};  // of one that has sent something
  };
  struct Taken {
    Ticket ticket = 0;
    std::optional<Ticket> ended;  // this one's place it is: its connection is to be closed
  };

  explicit Places(const Options& options) : options_(options) {}

  // When a newcomer can be taken; not after `now`: at once.
  Time FreeAt(Time now) const;
  // `address`: as AddressKey. To be called when FreeAt says so.
  Taken Take(Time now, std::string address);
  // It has sent something.
  void Heard(Ticket ticket);
  // It has ended, or is no stranger any more. Of one that has no place: nothing.
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
