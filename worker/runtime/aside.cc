#include "worker/runtime/aside.h"

#include <algorithm>
#include <utility>

#include "worker/compute/compute.h"

namespace lockstep::worker {

void AsideRoom::Use(const std::vector<Piece>& pieces,
                    const std::function<void(std::span<const Aside>)>& work) {
  if (!pages_) {
    auto pages = Pages::Reserve(memory_, floats_ * sizeof(float));
    if (!pages) throw DeviceError(pages.error().message);
    pages_.emplace(*std::move(pages));
  }
  auto* const room = reinterpret_cast<float*>(pages_->data());
  std::vector<Aside> now;
  std::uint64_t used = 0;
  for (Piece piece : pieces) {
    while (piece.range.count > 0) {
      if (used == floats_) {
        work(now);
        now.clear();
        used = 0;
      }
      const std::uint64_t count = std::min(piece.range.count, floats_ - used);
      now.push_back({{piece.of, {piece.range.first, count}}, room + used});
      used += count;
      piece.range = FloatRange::Between(piece.range.first + count, piece.range.end());
    }
  }
  if (!now.empty()) work(now);
}

}  // namespace lockstep::worker
