#include "worker/memory/factors.h"

#include <algorithm>
#include <cstring>

#include "base/random.h"
#include "worker/memory/low_rank.h"
#include "worker/memory/narrow.h"
#include "worker/memory/reduce.h"

namespace lockstep::worker {
namespace {

// So many numbers of a gradient stay in a core's own cache during the work on them.
constexpr std::uint64_t kHotNumbers = 16u << 10;

// The place of a last factor in the optimizer's tensor.
std::uint64_t LastAt(const Stretch& stretch, Side side, std::uint32_t rank) {
  return stretch.first + (side == Side::kRows ? 0 : stretch.rows * rank);
}

// (P, Q): the factor that is or was sent, and the known one.
struct Pair {
  const float* p;
  const float* q;
};
Pair PairOf(Side side, const float* sent, const float* known) {
  return side == Side::kRows ? Pair{sent, known} : Pair{known, sent};
}

// Calls `visit(first, count, row)` for pieces of the stretch. They are whole rows if it has any,
// and then at least four, which AddTimesRowFactor takes together.
template <class Visit>
void ForEachPiece(const Stretch& stretch, Visit visit) {
  const std::uint64_t row = stretch.dense() ? 1 : stretch.columns;
  const std::uint64_t most = std::max<std::uint64_t>(kHotNumbers / row, 4) * row;
  for (std::uint64_t at = 0; at < stretch.count; at += most) {
    visit(stretch.first + at, std::min(most, stretch.count - at), at / row);
  }
}

// The numbers plus the kept ones, in `rows` where there are any.
const float* Sum(const float* numbers, const float* kept, std::uint64_t n,
                 std::vector<float>* rows) {
  if (kept == nullptr) return numbers;
  rows->resize(std::max<std::size_t>(rows->size(), n));
  for (std::uint64_t i = 0; i < n; ++i) (*rows)[i] = numbers[i] + kept[i];
  return rows->data();
}

}  // namespace

Factors::Known Factors::KnownIn(RoundId round, std::uint32_t bucket, const float* last) const {
  Known known{bucket, round, {}};
  const std::uint32_t rank = layout_.rank();
  for (const Stretch& stretch : layout_.stretches(bucket)) {
    if (stretch.dense()) continue;
    const Side side = OtherThan(stretch.SideOf(round));
    const std::uint64_t length = stretch.LengthOf(side);
    const float* from = last + LastAt(stretch, side, rank);
    const std::size_t begin = known.numbers.size();
    known.numbers.insert(known.numbers.end(), from, from + length * rank);
    Orthonormalize(length, rank, side == Side::kRows,
                   RandomStream(seed_, stretch.first, round.value), known.numbers.data() + begin);
  }
  return known;
}

bool Factors::Send(const Known& known, const float* numbers, const float* kept, std::byte* to,
                   Room* room) const {
  const FloatRange& bucket = layout_.bucket(known.bucket);
  const std::uint64_t count = layout_.InContribution(bucket).count;
  const std::uint32_t rank = layout_.rank();
  float* sent = reinterpret_cast<float*>(to);
  if (type_ != NumberType::kFp32) {
    room->sent.resize(std::max<std::size_t>(room->sent.size(), count));
    sent = room->sent.data();
  }
  std::fill_n(sent, count, 0.0f);
  bool finite = true;
  for (const Stretch& stretch : layout_.stretches(known.bucket)) {
    float* put = sent + stretch.AtOf(known.round);
    const float* with = known.numbers.data() + stretch.KnownAtOf(known.round);
    ForEachPiece(stretch, [&](std::uint64_t first, std::uint64_t n, std::uint64_t row) {
      const std::uint64_t at = first - bucket.first;
      const float* all = Sum(numbers + at, kept == nullptr ? nullptr : kept + at, n, &room->rows);
      finite = finite && AllFinite(all, n);
      if (stretch.dense()) {
        std::copy_n(all, n, put + row);
        return;
      }
      const MatrixShape some{n / stretch.columns, stretch.columns, rank};
      if (stretch.SideOf(known.round) == Side::kRows) {
        TimesColumnFactor(some, all, with, put + row * rank);
      } else {
        AddTimesRowFactor(some, all, with + row * rank, put);
      }
    });
  }
  if (!finite || !AllFinite(sent, count)) {
    std::memset(to, 0xff, count * layout_.number_bytes());  // not a number in either type
    return false;
  }
  // The excess over the type's largest number is sent in later rounds.
  if (type_ != NumberType::kFp32) {
    NarrowSums(type_, sent, reinterpret_cast<std::uint16_t*>(to), count);
  }
  return true;
}

void Factors::Settle(const Known& known, const std::byte* sent, const float* kept, float* numbers,
                     Room* room) const {
  const FloatRange& bucket = layout_.bucket(known.bucket);
  const std::uint64_t count = layout_.InContribution(bucket).count;
  const std::uint32_t rank = layout_.rank();
  const float* wide = reinterpret_cast<const float*>(sent);
  if (type_ != NumberType::kFp32) {
    room->sent.resize(std::max<std::size_t>(room->sent.size(), count));
    Read(sent, 0, count, room->sent.data());
    wide = room->sent.data();
  }
  for (const Stretch& stretch : layout_.stretches(known.bucket)) {
    const Pair pair = PairOf(stretch.SideOf(known.round), wide + stretch.AtOf(known.round),
                             known.numbers.data() + stretch.KnownAtOf(known.round));
    ForEachPiece(stretch, [&](std::uint64_t first, std::uint64_t n, std::uint64_t row) {
      const std::uint64_t at = first - bucket.first;
      float* left = numbers + at;
      for (std::uint64_t i = 0; kept != nullptr && i < n; ++i) left[i] += kept[at + i];
      if (stretch.dense()) {
        const float* went = wide + stretch.AtOf(known.round) + row;
        for (std::uint64_t i = 0; i < n; ++i) left[i] -= went[i];
      } else {
        SubtractProduct({n / stretch.columns, stretch.columns, rank}, pair.p + row * rank, pair.q,
                        left);
      }
    });
  }
}

void Factors::Read(const std::byte* from, std::uint64_t at, std::uint64_t n, float* to) const {
  if (type_ == NumberType::kFp32) {
    std::memcpy(to, from + at * sizeof(float), n * sizeof(float));
  } else {
    Widen(type_, reinterpret_cast<const std::uint16_t*>(from) + at, to, n);
  }
}

void Factors::Gradient(const Known& known, const float* sums, const FloatRange& range,
                       float* to) const {
  const std::vector<Stretch>& stretches = layout_.stretches(known.bucket);
  auto at = std::ranges::upper_bound(stretches, range.first, {}, &Stretch::first);
  for (--at; at != stretches.end() && at->first < range.end(); ++at) {
    const std::uint64_t from = std::max(range.first, at->first);
    const std::uint64_t end = std::min(range.end(), at->first + at->count);
    const float* numbers = sums + at->AtOf(known.round);
    float* put = to + (from - range.first);
    if (at->dense()) {
      std::copy_n(numbers + (from - at->first), end - from, put);
      continue;
    }
    const Pair pair =
        PairOf(at->SideOf(known.round), numbers, known.numbers.data() + at->KnownAtOf(known.round));
    Product({at->rows, at->columns, layout_.rank()}, pair.p, pair.q, from - at->first, end - from,
            put);
  }
}

void Factors::Keep(const Known& known, const float* sums, float* last) const {
  const std::uint32_t rank = layout_.rank();
  for (const Stretch& stretch : layout_.stretches(known.bucket)) {
    if (stretch.dense()) continue;
    const Side side = stretch.SideOf(known.round);
    const float* from = sums + stretch.AtOf(known.round);
    const std::uint64_t count = stretch.LengthOf(side) * rank;
    if (std::all_of(from, from + count, [](float number) { return number == 0; })) continue;
    std::copy_n(from, count, last + LastAt(stretch, side, rank));
  }
}

void FactorForm::Begin(RoundId round, const float* last) {
  round_ = round;
  last_ = last;
  std::ranges::fill(known_, std::nullopt);
}

const Factors::Known& FactorForm::KnownOf(const SentBlock& block) {
  const std::uint32_t bucket = layout_.BucketOf(block.first);
  if (!known_[bucket]) known_[bucket] = factors_.KnownIn(round_, bucket, last_);
  return *known_[bucket];
}

bool FactorForm::SendEarly(const SentBlock& block, const float* numbers, const float* kept,
                           std::byte* to) {
  return factors_.Send(KnownOf(block), numbers, kept, to, &room_);
}

void FactorForm::Settle(const SentBlock& block, const std::byte* sent, const float* kept,
                        float* numbers) {
  factors_.Settle(KnownOf(block), sent, kept, numbers, &room_);
}

}  // namespace lockstep::worker
