// Strong types for the numbers that name things. docs/glossary.md says what each word means.
#pragma once

#include <fmt/format.h>

#include <compare>
#include <cstdint>
#include <functional>

namespace lockstep {

// An integer that does not mix with integers of another meaning. `value` is public on purpose: it
// is a number.
template <class Tag, class Rep>
struct Id {
  using Representation = Rep;
  Rep value{};

  constexpr Id() = default;
  constexpr explicit Id(Rep v) : value(v) {}
  constexpr auto operator<=>(const Id&) const = default;
  constexpr Id Next() const { return Id(static_cast<Rep>(value + 1)); }
};

using WorkerId =
    Id<struct WorkerIdTag, std::uint32_t>;  // slot 0.., kept across a restart of the worker
using Incarnation = Id<struct IncarnationTag, std::uint32_t>;  // of a slot: 1, 2, ...
using Term =
    Id<struct TermTag, std::uint32_t>;  // of a job: one for each start of its coordinator, from 1
using RoundId = Id<struct RoundIdTag, std::uint64_t>;      // 0, 1, ... in the whole job
using Attempt = Id<struct AttemptTag, std::uint32_t>;      // at a round's exchange: 0, 1, ...
using PartIndex = Id<struct PartIndexTag, std::uint8_t>;   // of a contribution: 0 or 1
using UnitIndex = Id<struct UnitIndexTag, std::uint32_t>;  // within its round: 0 ..
using Epoch = Id<struct EpochTag, std::uint32_t>;          // 0, 1, ...

inline constexpr int kMaxParts = 2;

// One worker process of the job: the present owner of the slot, not an earlier one. It also names
// the end of a data connection.
struct MemberId {
  WorkerId worker;
  Incarnation incarnation;
  auto operator<=>(const MemberId&) const = default;
};

}  // namespace lockstep

template <class Tag, class Rep>
struct std::hash<lockstep::Id<Tag, Rep>> {
  std::size_t operator()(lockstep::Id<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.value);
  }
};

template <class Tag, class Rep>
struct fmt::formatter<lockstep::Id<Tag, Rep>> {
  // Takes only "{}": g++ 12 takes the inherited parser of fmt 9 for a buffer overflow.
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  template <class Context>
  auto format(lockstep::Id<Tag, Rep> id, Context& context) const {
    return fmt::format_to(context.out(), "{}", static_cast<std::uint64_t>(id.value));
  }
};
