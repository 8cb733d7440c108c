// Which way the sums of an attempt go where its owner map does not say direct: a tree of the
// contributors for each owner's shard, with the owner as its root. Partial sums go up it, from
// contributor to contributor, each of which adds its own parts; the whole sums come down. A pure
// function of the commit: every member comes to the same trees by itself, and so to the same order
// of additions (I1).
//
//   ring  One tree that is a chain. The first contributor passes its part on to the second, and so
//         on; the last one has the whole sum and owns everything. So parts are added in the order
//         of the commit, one after the other, which is what direct does: its bits are direct's.
//   tree  Two binary trees, one for each half of the parameters, the second one the mirror image of
//         the first, so that who is inside of one is mostly a leaf of the other. After:
//         P. Sanders, J. Speck, J. Traeff, "Two-tree algorithms for full bandwidth broadcast,
//         reduction and scan", Parallel Computing 35 (2009). Each subtree is of contributors that
//         follow each other, so that neighbours by id, which tend to be neighbours in the network,
//         are added first.
//
// Who is no contributor adds nothing and nobody waits for it: it is a leaf that takes the sums.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/messages.h"

namespace lockstep {

// As in exchange.algorithm.
std::string_view AlgorithmName(ExchangeAlgorithm algorithm);

// Owners of a commit that is not direct.
inline constexpr std::uint32_t kMostRoots = 2;

// The owners of a commit over these contributors (ascending, at least one): the roots.
OwnerMap RootsOf(ExchangeAlgorithm algorithm, std::uint32_t version,
                 const std::vector<MemberId>& contributors);

// Of a commit, ascending: each that has a part in it.
std::vector<MemberId> ContributorsOf(const msg::Commit& commit);

// What one member does for one shard.
struct Route {
  bool adds = false;            // it is a contributor
  std::vector<MemberId> below;  // whose partial sums it adds, ascending; its own parts come after
  // Who takes its partial sum and gives it the whole one; none: it is the root. Who adds nothing
  // only takes the whole one.
  std::optional<MemberId> above;
  std::vector<MemberId> leaves;  // that add nothing, and take the whole sums here
  bool root() const { return !above; }
  bool operator==(const Route&) const = default;
};

// `shard`: the place of its owner in the commit's map. The member is one of the commit's.
Route RouteOf(const msg::Commit& commit, std::uint32_t shard, const MemberId& member);

// How many contributors a partial sum passes at most, the root included.
std::uint32_t DepthOf(ExchangeAlgorithm algorithm, std::uint32_t contributors);

}  // namespace lockstep
