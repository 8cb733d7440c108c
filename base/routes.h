// The route of an attempt's sums where its owner map is not direct: a tree of the contributors for
// each owner's shard, with the owner as its root. Partial sums go up the tree, from contributor to
// contributor, and each contributor adds its own parts; the whole sums come down. The routes are a
// pure function of the commit: every member computes the same trees by itself, and so the same
// order of additions (I1).
//
//   ring  One tree that is a chain. The first contributor passes its part on to the second, and so
//         on; the last one has the whole sum and owns everything. So parts are added in the order
//         of the commit, one after the other, as direct does: the bits are the same.
//   tree  Two binary trees, one for each half of the parameters. The second is the mirror image of
//         the first, so that an inner node of one is mostly a leaf of the other. The source is: P.
//         Sanders, J. Speck, J. Traeff, "Two-tree algorithms for full bandwidth broadcast,
//         reduction and scan", Parallel Computing 35 (2009). Each subtree has contributors that
//         follow each other. So neighbours by id, which tend to be neighbours in the network, are
//         added first.
//
// A member that is no contributor adds nothing and nobody waits for it: it is a leaf that takes the
// sums.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/messages.h"

namespace lockstep {

// The name in exchange.algorithm.
std::string_view AlgorithmName(ExchangeAlgorithm algorithm);

// The most owners of a commit that is not direct.
inline constexpr std::uint32_t kMostRoots = 2;

// The owners of a commit over these contributors (ascending, at least one): the roots.
OwnerMap RootsOf(ExchangeAlgorithm algorithm, std::uint32_t version,
                 const std::vector<MemberId>& contributors);

// The members with a part in the commit, ascending.
std::vector<MemberId> ContributorsOf(const msg::Commit& commit);

// The task of one member for one shard.
struct Route {
  bool adds = false;            // it is a contributor
  std::vector<MemberId> below;  // it adds their partial sums, ascending, then its own parts
  // The member that takes its partial sum and gives it the whole one; none: it is the root. A
  // member that adds nothing only takes the whole sum.
  std::optional<MemberId> above;
  std::vector<MemberId> leaves;  // members that add nothing, and take the whole sums here
  bool root() const { return !above; }
  bool operator==(const Route&) const = default;
};

// `shard`: the place of its owner in the commit's map. `member` is one of the commit's members.
Route RouteOf(const msg::Commit& commit, std::uint32_t shard, const MemberId& member);

// How many contributors a partial sum passes at most, the root included.
std::uint32_t DepthOf(ExchangeAlgorithm algorithm, std::uint32_t contributors);

}  // namespace lockstep
