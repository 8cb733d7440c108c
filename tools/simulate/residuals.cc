#include "tools/simulate/residuals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lockstep::simulate {

std::string Residuals::OnSent(const MemberId& member, RoundId round, PartIndex part,
                              std::span<const float> gradient, std::span<const float> sent,
                              std::span<const float> factors) {
  Account& account = of_[member];
  account.kept.resize(gradient.size());
  Left left{round, {gradient.begin(), gradient.end()}};
  if (part.value == 0) {
    const bool any = std::ranges::any_of(account.kept, [](float kept) { return kept != 0; });
    used_ += any ? 1 : 0;
    for (std::size_t i = 0; i < left.floats.size(); ++i) left.floats[i] += account.kept[i];
  }
  bool known = true;  // rates may diverge, and nothing is known then
  std::string error = layout_.rank() > 0 ? TakeFactors(round, part, sent, factors, &left, &known)
                                         : TakeLargest(round, part, sent, &left, &known);
  if (!error.empty()) return error;
  account.open[part.value].reset();
  if (known) account.open[part.value] = std::move(left);
  return "";
}

std::string Residuals::TakeFactors(RoundId round, PartIndex part, std::span<const float> sent,
                                   std::span<const float> factors, Left* left, bool* known) const {
  for (std::uint32_t b = 0; b < layout_.bucket_count(); ++b) {
    const worker::FloatRange& bucket = layout_.bucket(b);
    const worker::FloatRange at = layout_.InContribution(bucket);
    std::vector<float> due(at.count);
    auto* bytes = reinterpret_cast<std::byte*>(due.data());
    float* numbers = left->floats.data() + bucket.first;
    worker::Factors::Room room;
    const worker::Factors::Known others = factors_.KnownIn(round, b, factors.data());
    if (!factors_.Send(others, numbers, nullptr, bytes, &room)) {
      *known = false;
      return "";
    }
    factors_.Settle(others, bytes, nullptr, numbers, &room);
    if (!std::ranges::equal(due, sent.subspan(at.first, at.count))) {
      return fmt::format("of part {} of round {} it sent other factors of bucket {} than it has",
                         part, round, b);
    }
  }
  return "";
}

std::string Residuals::TakeLargest(RoundId round, PartIndex part, std::span<const float> sent,
                                   Left* left, bool* known) const {
  for (std::uint32_t b = 0; b < layout_.bucket_count(); ++b) {
    const worker::FloatRange& bucket = layout_.bucket(b);
    for (const worker::FloatRange& grain :
         worker::CutPieces(bucket, worker::kGrain * sizeof(float))) {
      float least = INFINITY;
      float most = 0;
      std::uint64_t count = 0;
      for (std::uint64_t i = grain.first; i < grain.end(); ++i) {
        float& number = left->floats[i];
        if (std::isnan(number)) {
          *known = false;
          return "";
        }
        if (sent[i] != 0) {
          if (sent[i] != number) {
            return fmt::format("of part {} of round {} it sent {} at {}, and has {}", part, round,
                               sent[i], i, number);
          }
          ++count;
          least = std::min(least, std::fabs(number));
          number = 0;
        } else {
          most = std::max(most, std::fabs(number));
        }
      }
      const std::uint64_t due = std::min<std::uint64_t>(layout_.kept(), grain.count);
      if (most > least || count > due || (count < due && most > 0)) {
        return fmt::format(
            "of part {} of round {} it sent {} of {} numbers from {} on, from {} on, "
            "and kept {}",
            part, round, count, grain.count, grain.first, least, most);
      }
    }
  }
  return "";
}

void Residuals::OnApplied(const MemberId& member, RoundId round,
                          std::span<const CommittedPart> parts) {
  const auto at = of_.find(member);
  if (at == of_.end()) return;
  Account& account = at->second;
  for (std::uint8_t p = 0; p < kMaxParts; ++p) {
    std::optional<Left>& open = account.open[p];
    const bool counts =
        open && open->round == round && std::ranges::any_of(parts, [&](const CommittedPart& part) {
          return part.member == member && part.part.value == p;
        });
    if (!counts) continue;
    if (p == 0) {
      account.kept = std::move(open->floats);
    } else {
      for (std::size_t i = 0; i < account.kept.size(); ++i) account.kept[i] += open->floats[i];
    }
    open.reset();
  }
}

}  // namespace lockstep::simulate
