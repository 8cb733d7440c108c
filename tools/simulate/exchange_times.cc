#include "tools/simulate/exchange_times.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "base/routes.h"
#include "worker/core/all_reduce.h"

namespace lockstep::simulate {
namespace {

constexpr std::uint64_t kFrame = 64;

class Exchange {
 public:
  Exchange(const ExchangeOfAll& exchange, const NetworkOptions& network)
      : of_(exchange),
        links_(network),
        network_(network, exchange.workers),
        layout_({{0, std::max<std::uint64_t>(exchange.bytes / sizeof(float), 1)}},
                std::max<std::uint64_t>(exchange.bytes, 4096)) {}

  ExchangeTimes Go() {
    of_.algorithm == ExchangeAlgorithm::kDirect ? Direct() : Routed();
    return {summed_ - Time{}, std::max(taken_, summed_) - summed_};
  }

 private:
  // Few bytes go along with the message that announces them; others are requested. Returns the
  // arrival.
  Time Carry(Time now, std::uint32_t from, std::uint32_t to, std::uint64_t bytes, bool rides) {
    if (rides) return network_.Arrival(now, from, to, bytes + kFrame);
    // An announcement and a request take time, also at both ends, but no link: it carries other
    // pieces meanwhile.
    const Duration one_way = links_.latency + 2 * links_.message_cost;
    const auto ends =
        static_cast<std::uint64_t>(2 * Seconds(links_.message_cost) * links_.bytes_per_second);
    return network_.Arrival(now + 2 * one_way, from, to, bytes + kFrame + ends);
  }

  // Every worker begins with another one.
  void Direct() {
    const std::uint32_t n = of_.workers;
    const auto shards =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(n, layout_.grain_count()));
    const std::uint64_t bytes = of_.bytes / shards;
    const bool rides = bytes <= of_.inline_bytes;
    std::vector<Time> ready(shards);
    const Time begin{};
    // It goes step by step for all pairs, so that links see messages in the order of time.
    const auto round = [&](const std::vector<Time>& from, bool to_owners,
                           std::vector<Time>* there) {
      std::vector<Time> told(static_cast<std::size_t>(shards) * (n - 1));
      const auto each = [&](std::uint64_t size, bool back, bool last) {
        for (std::uint32_t turn = 1; turn < n; ++turn) {
          for (std::uint32_t owner = 0; owner < shards; ++owner) {
            const std::uint32_t other = (owner + turn) % n;
            Time& at = told[static_cast<std::size_t>(owner) * (n - 1) + turn - 1];
            const bool towards = to_owners != back;
            at = network_.Arrival(at, towards ? other : owner, towards ? owner : other, size);
            if (last) {
              Time& done = (*there)[to_owners ? owner : 0];
              done = std::max(done, at);
            }
          }
        }
      };
      for (std::uint32_t owner = 0; owner < shards; ++owner) {
        std::fill_n(told.begin() + static_cast<std::ptrdiff_t>(owner) * (n - 1), n - 1,
                    from[owner]);
      }
      if (!rides) {
        each(kFrame, false, false);
        each(kFrame, true, false);
      }
      each(bytes + kFrame, false, true);
    };
    round(std::vector<Time>(shards, begin), true, &ready);
    for (Time& at : ready) at += network_.Pass(bytes * n);
    summed_ = *std::ranges::max_element(ready);
    std::vector<Time> taken(1, summed_);
    round(ready, false, &taken);
    taken_ = taken[0];
  }

  struct Tree {
    std::vector<std::uint32_t> above;   // of the root itself
    std::vector<std::uint32_t> height;  // the longest way down
    std::vector<std::uint32_t> depth;   // the way up
    std::vector<std::uint64_t> pieces;  // bytes
    bool rides = false;
    // By worker and piece: when the sums from below are there; later, when the whole ones are.
    std::vector<std::vector<Time>> there;
    std::vector<Time> busy;  // of the reduction, by worker
  };

  Tree TreeOf(const msg::Commit& commit, std::uint32_t shard) {
    const std::uint32_t n = of_.workers;
    Tree tree;
    std::vector<Route> routes;
    for (const MemberId& id : commit.members) routes.push_back(RouteOf(commit, shard, id));
    tree.height.resize(n);
    tree.depth.resize(n);
    for (std::uint32_t w = 0; w < n; ++w) {
      tree.above.push_back(routes[w].above ? routes[w].above->worker.value : w);
    }
    for (std::uint32_t w = 0; w < n; ++w) {
      std::uint32_t up = 0;
      for (std::uint32_t at = w; tree.above[at] != at; at = tree.above[at]) {
        ++up;
        if (of_.algorithm == ExchangeAlgorithm::kRing) break;
        tree.height[tree.above[at]] = std::max(tree.height[tree.above[at]], up);
      }
      tree.depth[w] = up;
    }
    if (of_.algorithm == ExchangeAlgorithm::kRing) {
      for (std::uint32_t w = 0; w < n; ++w) {
        tree.height[w] = w;
        tree.depth[w] = n - 1 - w;
      }
    }
    std::uint64_t bytes = 0;
    const auto slices = layout_.Shard(commit.owners, commit.owners.owners[shard].owner);
    for (const auto& piece : worker::RoutedPieces(layout_, slices, n, of_.piece_bytes)) {
      tree.pieces.push_back(piece.range.count * sizeof(float));
      bytes += tree.pieces.back();
    }
    tree.rides = bytes <= of_.inline_bytes;
    if (tree.rides && bytes > 0) tree.pieces = {bytes};
    tree.there.assign(n, std::vector<Time>(tree.pieces.size()));
    tree.busy.resize(n);
    return tree;
  }

  // It goes wave by wave: in each, every piece moves one worker further, up or down.
  void Routed() {
    msg::Commit commit;
    for (std::uint32_t w = 0; w < of_.workers; ++w) {
      const MemberId id{WorkerId(w), Incarnation(1)};
      commit.members.push_back(id);
      commit.parts.push_back({id, PartIndex(0), 1, 1});
    }
    commit.owners = RootsOf(of_.algorithm, 1, commit.members);
    std::vector<Tree> trees;
    std::size_t waves = 0;
    for (std::uint32_t s = 0; s < commit.owners.owners.size(); ++s) {
      trees.push_back(TreeOf(commit, s));
      waves = std::max(waves, 2 * std::size_t{of_.workers} + trees.back().pieces.size());
    }
    for (Tree& tree : trees) Sort(tree);
    for (std::size_t wave = 0; wave < waves; ++wave) {
      for (std::size_t t = 0; t < trees.size(); ++t) Move(trees[t], orders_[t], wave);
    }
  }

  // Workers by height, and by depth.
  struct Orders {
    std::vector<std::vector<std::uint32_t>> by_height, by_depth;
  };
  void Sort(const Tree& tree) {
    Orders orders;
    const std::uint32_t top = *std::ranges::max_element(tree.height) + 1;
    orders.by_height.resize(top);
    orders.by_depth.resize(top);
    for (std::uint32_t w = 0; w < of_.workers; ++w) {
      orders.by_height[tree.height[w]].push_back(w);
      orders.by_depth[tree.depth[w]].push_back(w);
    }
    orders_.push_back(std::move(orders));
  }

  void Move(Tree& tree, const Orders& orders, std::size_t wave) {
    const std::size_t levels = orders.by_height.size();
    for (std::size_t p = wave < 2 * levels ? 0 : wave - 2 * levels + 1;
         p < tree.pieces.size() && p <= wave; ++p) {
      const std::size_t at = wave - p;
      if (at < levels) {
        for (const std::uint32_t worker : orders.by_height[at]) Up(tree, worker, p);
      } else if (at < 2 * levels) {
        for (const std::uint32_t worker : orders.by_depth[at - levels]) Down(tree, worker, p);
      }
    }
  }

  // The worker adds its own part to the sums from below, and passes the result on.
  void Up(Tree& tree, std::uint32_t worker, std::size_t p) {
    const std::uint64_t bytes = tree.pieces[p];
    Time& busy = tree.busy[worker];
    busy = std::max(busy, tree.there[worker][p]) + network_.Pass(3 * bytes);
    const std::uint32_t above = tree.above[worker];
    if (above == worker) {
      tree.there[worker][p] = busy;
      summed_ = std::max(summed_, busy);
      return;
    }
    Time& there = tree.there[above][p];
    there = std::max(there, Carry(busy, worker, above, bytes, tree.rides));
  }

  void Down(Tree& tree, std::uint32_t worker, std::size_t p) {
    const std::uint32_t above = tree.above[worker];
    if (above == worker) return;
    Time& there = tree.there[worker][p];
    there = Carry(tree.there[above][p], above, worker, tree.pieces[p], tree.rides);
    taken_ = std::max(taken_, there);
  }

  const ExchangeOfAll of_;
  const NetworkOptions links_;
  ModelNetwork network_;
  const worker::Layout layout_;
  std::vector<Orders> orders_;
  Time summed_;
  Time taken_;
};

}  // namespace

ExchangeTimes TimesOf(const ExchangeOfAll& exchange, const NetworkOptions& network) {
  if (exchange.workers < 2) return {};
  return Exchange(exchange, network).Go();
}

}  // namespace lockstep::simulate
