#include "base/routes.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace lockstep {

namespace {

// A place among the contributors, in the order of the tree: its root is 0.
struct Node {
  std::optional<std::size_t> above;
  std::vector<std::size_t> below;
};

// A subtree is a range of places, the first of which is its root; the rest is halved.
Node InTree(std::size_t place, std::size_t count) {
  Node node;
  std::size_t from = 0;
  std::size_t to = count;
  while (true) {
    const std::size_t middle = from + 1 + (to - from) / 2;
    if (place == from) {
      if (from + 1 < to) node.below.push_back(from + 1);
      if (middle < to) node.below.push_back(middle);
      return node;
    }
    node.above = from;
    if (place < middle) {
      ++from;
      to = middle;
    } else {
      from = middle;
    }
  }
}

Node InRing(std::size_t place, std::size_t count) {
  Node node;
  if (place > 0) node.above = place - 1;
  if (place + 1 < count) node.below.push_back(place + 1);
  return node;
}

}  // namespace

std::string_view AlgorithmName(ExchangeAlgorithm algorithm) {
  switch (algorithm) {
    case ExchangeAlgorithm::kDirect:
      return "direct";
    case ExchangeAlgorithm::kRing:
      return "ring";
    case ExchangeAlgorithm::kTree:
      return "tree";
  }
  return "";
}

OwnerMap RootsOf(ExchangeAlgorithm algorithm, std::uint32_t version,
                 const std::vector<MemberId>& contributors) {
  LOCKSTEP_CHECK(!contributors.empty() && algorithm != ExchangeAlgorithm::kDirect,
                 "sums are passed on by nobody");
  OwnerMap map{version, {}};
  map.algorithm = algorithm;
  const bool two = algorithm == ExchangeAlgorithm::kTree && contributors.size() > 1;
  if (two) map.owners.push_back({contributors.front(), 1});
  map.owners.push_back({contributors.back(), 1});
  return map;
}

std::vector<MemberId> ContributorsOf(const msg::Commit& commit) {
  std::vector<MemberId> contributors;
  for (const CommittedPart& part : commit.parts) {
    if (contributors.empty() || contributors.back() != part.member) {
      contributors.push_back(part.member);
    }
  }
  return contributors;
}

Route RouteOf(const msg::Commit& commit, std::uint32_t shard, const MemberId& member) {
  const OwnerMap& map = commit.owners;
  const std::vector<MemberId> contributors = ContributorsOf(commit);
  const std::size_t count = contributors.size();
  Route route;
  std::vector<MemberId> others;
  std::ranges::set_difference(commit.members, contributors, std::back_inserter(others));
  // Members that add nothing are spread over the contributors, in their order.
  const auto host = [&](std::size_t other) { return other * count / others.size(); };
  const auto at = std::ranges::lower_bound(contributors, member);
  if (at == contributors.end() || *at != member) {
    const auto other = std::ranges::lower_bound(others, member);
    LOCKSTEP_CHECK(other != others.end() && *other == member, "worker {} takes no part in round {}",
                   member.worker, commit.round);
    route.above = contributors[host(static_cast<std::size_t>(other - others.begin()))];
    return route;
  }
  const auto self = static_cast<std::size_t>(at - contributors.begin());
  route.adds = true;
  for (std::size_t i = 0; i < others.size(); ++i) {
    if (host(i) == self) route.leaves.push_back(others[i]);
  }
  // The root is the first place, or, in the mirror image, the last contributor.
  const bool mirrored = map.owners[shard].owner == contributors.back();
  const auto mirror = [&](std::size_t place) { return mirrored ? count - 1 - place : place; };
  const Node node = map.algorithm == ExchangeAlgorithm::kTree ? InTree(mirror(self), count)
                                                              : InRing(mirror(self), count);
  if (node.above) route.above = contributors[mirror(*node.above)];
  for (const std::size_t place : node.below) route.below.push_back(contributors[mirror(place)]);
  std::ranges::sort(route.below);
  return route;
}

std::uint32_t DepthOf(ExchangeAlgorithm algorithm, std::uint32_t contributors) {
  if (algorithm == ExchangeAlgorithm::kDirect) return std::min(contributors, 1u);
  if (algorithm == ExchangeAlgorithm::kRing) return contributors;
  std::uint32_t depth = 0;
  // The larger half of the nodes below the root.
  for (std::uint32_t left = contributors; left > 0; left /= 2) ++depth;
  return depth;
}

}  // namespace lockstep
