#include "worker/runtime/operations.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "worker/memory/sha256.h"

namespace lockstep::worker {
namespace {

// As much as is brought to the host at a time.
constexpr std::uint64_t kDigestFloats = 1u << 20;
// Of parameters that are updated and read again, or of sums that are widened: with their sums and
// state they stay in a core's own cache.
constexpr std::uint64_t kHotBytes = 64u << 10;
static_assert(kHotBytes / sizeof(float) % kGrain == 0);
// As much as a thread does of an operation at a time, beside which it costs nothing to take the
// next one.
constexpr std::uint64_t kPieceBytes = 1u << 20;
static_assert(kPieceBytes / sizeof(float) % kGrain == 0);

// From here on what is written is taken to be more than stays in a core's caches, and worth being
// done by several threads.
constexpr std::uint64_t kLargeBytes = 1u << 20;
// A larger bucket is read once more for its digest, where several threads have updated it.
constexpr std::uint64_t kMostByOneBytes = 8u << 20;

// Stands for the slices that are digested as they are updated.
constexpr std::size_t kOfBucket = std::numeric_limits<std::size_t>::max();

std::vector<FloatRange> RangesOf(const std::vector<action::SourceRange>& from) {
  std::vector<FloatRange> ranges;
  for (const action::SourceRange& one : from) ranges.push_back(one.range);
  return ranges;
}

// `squares`: of all sums.
float ClipFactorOf(double squares, float scale, double clip) {
  const double norm = static_cast<double>(scale) * std::sqrt(squares);
  return norm > clip ? static_cast<float>(clip / norm) : 1.0f;
}

}  // namespace

std::vector<Piece> Operations::Pieces(const std::vector<FloatRange>& ranges) const {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (!memory_.on_host()) {
      pieces.push_back({i, ranges[i]});
      continue;
    }
    for (const FloatRange& range : CutPieces(ranges[i], kPieceBytes)) pieces.push_back({i, range});
  }
  return pieces;
}

bool Operations::Large(const std::vector<Piece>& pieces) {
  std::uint64_t floats = 0;
  for (const Piece& piece : pieces) floats += piece.range.count;
  return floats * sizeof(float) >= kLargeBytes;
}

void Operations::ForEach(const std::vector<Piece>& pieces,
                         const std::function<void(const Piece&)>& work) {
  ForEach(pieces, Large(pieces), work);
}

void Operations::ForEach(const std::vector<Piece>& pieces, bool large,
                         const std::function<void(const Piece&)>& work) {
  if (!memory_.on_host()) {  // in order, and it may throw
    std::ranges::for_each(pieces, std::cref(work));
    return;
  }
  if (!large) {  // others would come too late to be of use
    std::ranges::for_each(pieces, std::cref(work));
    return;
  }
  crew_.ForEach(pieces.size(), [&](std::size_t i) { work(pieces[i]); });
}

std::uint64_t Operations::Bytes(const action::Reduce& reduce) const {
  std::uint64_t numbers = 0;
  for (const Slice& slice : reduce.slices) numbers += layout_.InSum(slice.range, 0).count;
  return numbers * (reduce.inputs.size() + 1) * layout_.number_bytes();
}
std::uint64_t Operations::Bytes(const action::CopySums& copy) const {
  std::uint64_t floats = 0;
  for (const action::SourceRange& from : copy.from) floats += from.range.count;
  return 2 * floats * layout_.number_bytes();
}
std::uint64_t Operations::Bytes(const action::UpdateHeld& update) const {
  std::uint64_t floats = 0;
  for (const FloatRange& range : update.ranges) floats += range.count;
  return floats * (3 + 2 * std::uint64_t{state_tensors_}) * sizeof(float);
}
std::uint64_t Operations::Bytes(const action::TakeParameters& take) const {
  std::uint64_t floats = 0;
  for (const action::SourceRange& from : take.from) floats += from.range.count;
  return 2 * floats * sizeof(float);
}
// The sums, and the parameters and state twice.
std::uint64_t Operations::Bytes(const action::Apply& apply) const {
  std::uint64_t floats = 0;
  for (const action::SourceRange& slice : apply.slices) floats += slice.range.count;
  // With a rank as many products as sums, which take as long.
  return floats * ((std::uint64_t{1} + layout_.rank()) * layout_.number_bytes() +
                   (2 + 2 * std::uint64_t{state_tensors_}) * sizeof(float));
}
std::uint64_t Operations::Bytes(const action::CopyState& copy) const {
  return 2 * (1 + std::uint64_t{state_tensors_}) * layout_.copy(copy.bucket).count * sizeof(float);
}
std::uint64_t Operations::Bytes(const action::TakeSnapshot&) const {
  return 2 * (1 + std::uint64_t{state_tensors_}) * layout_.parameter_count() * sizeof(float);
}
std::uint64_t Operations::Bytes(const action::DigestState&) const {
  return layout_.parameter_count() * sizeof(float);
}
std::uint64_t Operations::Bytes(const action::DigestReplica&) const {
  return (1 + std::uint64_t{state_tensors_}) * layout_.parameter_count() * sizeof(float);
}

event::OpDone Operations::Run(const action::Reduce& reduce) {
  event::OpDone done;
  done.op = reduce.op;
  std::vector<OpenSource> sources;
  for (const action::ReduceInput& input : reduce.inputs) {
    auto open = sources_.Open(input.source);
    if (!open) {
      done.torn = true;
      return done;
    }
    sources.push_back(std::move(*open));
  }
  std::vector<FloatRange> ranges;
  for (const Slice& slice : reduce.slices) ranges.push_back(slice.range);
  const std::vector<Piece> pieces = Pieces(ranges);
  const bool large = layout_.rank() == 0
                         ? Large(pieces)
                         : Bytes(reduce) / (reduce.inputs.size() + 1) >= kLargeBytes;
  const auto slice_of = [&](const Piece& piece) {
    return Slice{reduce.slices[piece.of].bucket, piece.range};
  };
  std::atomic<bool> all_made{true};
  ForEach(pieces, large, [&](const Piece& piece) {
    const Slice slice = slice_of(piece);
    if (!summing_.Make(reduce, sources, slice, large)) all_made = false;
    if (memory_.on_host()) summing_.MakeSquares(reduce, slice);  // while they are in the cache
  });
  // A device does many operations of one kind at once.
  if (!memory_.on_host()) {
    for (const Piece& piece : pieces) summing_.MakeSquares(reduce, slice_of(piece));
  }
  if (!memory_.Finish()) all_made = false;
  const bool too_large = !all_made && summing_.FalseIsTooLarge();
  if (!all_made && !too_large) done.not_finite = summing_.NotFinite(reduce, sources);
  done.torn = !StillValid(sources);
  // Once: where it happens it happens in each round.
  if (too_large && !done.torn && !told_of_large_sums_.exchange(true)) {
    spdlog::warn(
        "round {}: sums of gradients are beyond the largest number of {} and count as that number; "
        "exchange.dtype = {} has room for them",
        reduce.round, buffers_.type() == NumberType::kFp16 ? "fp16" : "bf16",
        buffers_.type() == NumberType::kFp16 ? "bf16" : "fp32");
  }
  return done;
}

event::OpDone Operations::Run(const action::CopySums& copy) {
  event::OpDone done;
  done.op = copy.op;
  std::byte* to = buffers_.Data(copy.to);
  const std::vector<std::optional<OpenSource>> sources = sources_.Open(copy.from);
  const std::vector<Piece> pieces = Pieces(RangesOf(copy.from));
  const bool large = Large(pieces);
  ForEach(pieces, [&](const Piece& piece) {
    const auto& open = sources[piece.of];
    const FloatRange& range = piece.range;
    if (open && buffers_.type() == NumberType::kFp32) {
      memory_.Copy(reinterpret_cast<float*>(to) + range.first, open->Floats(range.first),
                   range.count, large);
    } else if (open) {
      memory_.Copy(reinterpret_cast<std::uint16_t*>(to) + range.first, open->Narrow(range.first),
                   range.count);
    }
  });
  memory_.Finish();
  done.torn = !StillValid(sources);
  return done;
}

void Operations::ReadByHost(const float* data, std::uint64_t count,
                            const std::function<void(std::span<const float>)>& read) {
  if (memory_.on_host()) return read({data, count});
  const std::lock_guard lock(scratch_mutex_);
  float* scratch = scratch_.Need(std::min(count, kDigestFloats));
  for (std::uint64_t at = 0; at < count; at += kDigestFloats) {
    const std::uint64_t n = std::min(kDigestFloats, count - at);
    memory_.ToHost(scratch, data + at, n * sizeof(float));
    read({scratch, n});
  }
}

double Operations::SumOfSquares(const std::vector<Words>& norms) {
  const std::lock_guard lock(scratch_mutex_);
  std::uint64_t words = 0;
  for (const Words& some : norms) words += some.count;
  // All in one go: to wait for each is what takes the time.
  float* scratch = memory_.on_host() ? nullptr : scratch_.Need(words);
  if (scratch != nullptr) {
    std::vector<ExchangeMemory::HostCopy> copies;
    for (float* to = scratch; const Words& some : norms) {
      copies.push_back({to, some.data, some.count * sizeof(float)});
      to += some.count;
    }
    memory_.ToHost(copies);
  }
  double total = 0;
  for (const Words& some : norms) {
    const float* values = scratch != nullptr ? scratch : some.data;
    for (std::uint64_t i = 0; i + 2 <= some.count; i += 2) {
      double value;
      std::memcpy(&value, values + i, sizeof value);
      total += value;
    }
    if (scratch != nullptr) scratch += some.count;
  }
  return total;
}

void Operations::DropHeldState(const action::DropHeldState& drop) {
  if (buffers_.held() != nullptr) return buffers_.held()->Drop(drop.ranges);
  for (std::uint32_t t = 1; t <= state_tensors_; ++t) {
    auto* state = reinterpret_cast<std::byte*>(buffers_.At({BufferKind::kState, t, {}}));
    for (const FloatRange& range : drop.ranges) {
      memory_.GiveBack(state + range.first * sizeof(float), range.count * sizeof(float));
    }
  }
}

std::optional<float> Operations::ClipFactor(const action::Apply& apply) {
  if (apply.clip <= 0) return 1.0f;
  std::vector<OpenSource> sources;
  std::vector<Words> norms;
  const std::uint64_t number = layout_.number_bytes();
  for (const action::SourceRange& some : apply.norms) {
    auto open = sources_.Open(some.source);
    if (!open) return std::nullopt;
    norms.push_back({reinterpret_cast<const float*>(open->data + some.range.first * number),
                     some.range.count * number / sizeof(float)});
    sources.push_back(std::move(*open));
  }
  const double total = SumOfSquares(norms);
  if (!StillValid(sources)) return std::nullopt;
  return ClipFactorOf(total, apply.scale, apply.clip);
}

void Operations::Update(const UpdateScalars& scalars, const FloatRange& range, float* parameters,
                        const float* gradient_sum) {
  std::vector<float*> state;
  for (std::uint32_t t = 1; t <= state_tensors_; ++t) {
    state.push_back(buffers_.At({BufferKind::kState, t, {}}) + range.first);
  }
  optimizer_.ApplyBy(memory_.update_loops(), scalars,
                     {.first = range.first,
                      .count = range.count,
                      .parameters = parameters,
                      .state = state,
                      .gradient_sum = gradient_sum});
}

void Operations::ForWidened(const std::vector<Piece>& pieces, const std::vector<OpenSource>& sums,
                            const std::function<void(const AsideRoom::Aside&)>& work) {
  aside_.Use(pieces, [&](std::span<const AsideRoom::Aside> now) {
    for (const auto& [piece, aside] : now) {
      memory_.Widen(buffers_.type(), sums[piece.of].Narrow(piece.range.first), aside,
                    piece.range.count);
    }
    for (const AsideRoom::Aside& one : now) work(one);
  });
}

void Operations::UpdateWidened(const UpdateScalars& scalars, const FloatRange& range,
                               const OpenSource& sums, std::uint32_t entries) {
  std::vector<float> wide(std::min(range.count, kHotBytes / sizeof(float)));
  for (const FloatRange& piece : CutPieces(range, kHotBytes)) {
    summing_.Widen(sums, entries, piece, wide.data());
    Update(scalars, piece, buffers_.parameters() + piece.first, wide.data());
  }
}

std::uint64_t Operations::DigestOfBucket(std::uint32_t bucket) {
  const FloatRange& range = layout_.bucket(bucket);
  DigestStream digest;
  ReadByHost(buffers_.parameters() + range.first, range.count,
             [&](std::span<const float> piece) { digest.Update(std::as_bytes(piece)); });
  return digest.Digest().low;
}

// What was torn is found before the program sees the gradient: an update cannot be taken back.
std::optional<event::OpDone> Operations::Gather(const action::Apply& apply) {
  event::OpDone torn;
  torn.op = apply.op;
  torn.torn = true;
  const auto clip = ClipFactor(apply);
  const auto sources = clip ? sources_.OpenAll(apply.slices) : std::nullopt;
  if (!sources) return torn;
  float* gradient = buffers_.update_gradient();
  const std::uint32_t entries = layout_.SumEntries(apply.parts);
  const float factor = apply.scale * *clip;
  const std::vector<Piece> pieces = Pieces(RangesOf(apply.slices));
  const bool large = Large(pieces);
  const auto scale = [&](const float* sums, const FloatRange& range) {
    const Input sum{sums, factor};
    memory_.WeightedSum({&sum, 1}, gradient + range.first, range.count, large);
  };
  if (layout_.rank() > 0) {
    ForFactored(apply, *sources,
                [&](const FloatRange& range, const float* sums) { scale(sums, range); });
  } else if (!summing_.Plain(entries) && !memory_.on_host()) {
    ForWidened(pieces, *sources,
               [&](const AsideRoom::Aside& one) { scale(one.at, one.piece.range); });
  } else {
    ForEach(pieces, [&](const Piece& of_slice) {
      const FloatRange& range = of_slice.range;
      const OpenSource& sums = (*sources)[of_slice.of];
      if (summing_.Plain(entries)) {
        scale(sums.Floats(range.first), range);
        return;
      }
      std::vector<float> wide(std::min(range.count, kHotBytes / sizeof(float)));
      for (const FloatRange& piece : CutPieces(range, kHotBytes)) {
        summing_.Widen(sums, entries, piece, wide.data());
        scale(wide.data(), piece);
      }
    });
  }
  memory_.Finish();
  if (!StillValid(*sources)) return torn;
  NoteStateWritten();
  return std::nullopt;
}

event::OpDone Operations::EndUpdate(std::uint64_t op, std::uint32_t digest_bucket) {
  event::OpDone done;
  done.op = op;
  done.digest = DigestOfBucket(digest_bucket);
  return done;
}

event::OpDone Operations::Run(const action::Apply& apply) {
  event::OpDone done;
  done.op = apply.op;
  const auto clip = ClipFactor(apply);
  // All sources are there before the first parameter changes.
  const auto opened = clip ? sources_.OpenAll(apply.slices) : std::nullopt;
  if (!opened) {
    done.torn = true;
    return done;
  }
  const std::vector<OpenSource>& sources = *opened;
  const UpdateScalars scalars{.scale = apply.scale,
                              .clip_factor = *clip,
                              .learning_rate = apply.learning_rate,
                              .fraction = apply.fraction,
                              .steps = apply.steps};
  NoteStateWritten();
  if (layout_.rank() > 0) {
    ForFactored(apply, sources, [&](const FloatRange& range, const float* gradient) {
      Update(scalars, range, buffers_.parameters() + range.first, gradient);
    });
    done.torn = !StillValid(sources);
    done.digest = DigestOfBucket(apply.digest_bucket);
    return done;
  }
  float* parameters = buffers_.parameters();
  const std::uint32_t entries = layout_.SumEntries(apply.parts);
  const auto update = [&](std::size_t slice, const FloatRange& range) {
    if (summing_.Plain(entries)) {
      Update(scalars, range, parameters + range.first, sources[slice].Floats(range.first));
    } else {
      UpdateWidened(scalars, range, sources[slice], entries);
    }
  };
  // The slices go by offset, so those of the bucket whose digest is taken come one behind the
  // other; each piece of them is read again while it is in the cache. All of them are one thread's,
  // unless they are many.
  const FloatRange& bucket = layout_.bucket(apply.digest_bucket);
  const bool is_large = bucket.count * sizeof(float) > kMostByOneBytes;
  const bool several = crew_.threads() > 1;
  DigestStream digest;
  std::uint64_t digested = bucket.first;  // up to there
  std::vector<FloatRange> ranges;         // those of the bucket are left empty
  std::vector<Piece> of_bucket;
  for (std::size_t i = 0; i < apply.slices.size(); ++i) {
    const FloatRange& range = apply.slices[i].range;
    const bool in_bucket = memory_.on_host() && range.first == digested &&
                           range.end() <= bucket.end() && !(several && is_large);
    ranges.push_back(in_bucket ? FloatRange{range.first, 0} : range);
    if (!in_bucket) continue;
    of_bucket.push_back({i, range});
    digested = range.end();
  }
  std::vector<Piece> pieces = Pieces(ranges);
  if (!summing_.Plain(entries) && !memory_.on_host()) {
    ForWidened(pieces, sources, [&](const AsideRoom::Aside& one) {
      const FloatRange& range = one.piece.range;
      Update(scalars, range, parameters + range.first, one.at);
    });
    pieces.clear();
  }
  if (!of_bucket.empty()) pieces.insert(pieces.begin(), Piece{kOfBucket, {}});
  ForEach(pieces, [&](const Piece& piece) {
    if (piece.of != kOfBucket) {
      update(piece.of, piece.range);
      return;
    }
    for (const Piece& slice : of_bucket) {
      for (const FloatRange& hot : CutPieces(slice.range, kHotBytes)) {
        update(slice.of, hot);
        digest.Update(std::as_bytes(std::span(parameters + hot.first, hot.count)));
      }
    }
  });
  memory_.Finish();
  done.torn = !StillValid(sources);
  done.digest =
      digested == bucket.end() ? digest.Digest().low : DigestOfBucket(apply.digest_bucket);
  return done;
}

// Each number of a bucket may come out of all of its sums, so these are gathered first; of some
// buckets at a time, and then their pieces are shared out.
void Operations::ForFactored(const action::Apply& apply, const std::vector<OpenSource>& sources,
                             const std::function<void(const FloatRange&, const float*)>& use) {
  constexpr std::uint64_t kAtOnce = 4u << 20;  // parameters
  struct Gathered {
    Factors::Known known;
    std::vector<float> sums;
  };
  std::map<std::uint32_t, std::vector<std::size_t>> slices;  // by bucket
  for (std::size_t i = 0; i < apply.slices.size(); ++i) {
    slices[layout_.BucketOf(apply.slices[i].range.first)].push_back(i);
  }
  float* const last = buffers_.factors();
  for (auto next = slices.begin(); next != slices.end();) {
    std::vector<Gathered> gathered;
    std::vector<FloatRange> ranges;
    std::uint64_t parameters = 0;
    for (; next != slices.end() && parameters < kAtOnce; ++next) {
      const auto& [bucket, of_bucket] = *next;
      const FloatRange all = layout_.InSum(layout_.bucket(bucket), 0);
      Gathered one{factors_.KnownIn(apply.round, bucket, last), std::vector<float>(all.count)};
      std::uint64_t there = 0;
      for (const std::size_t s : of_bucket) {
        const FloatRange at = layout_.InSum(apply.slices[s].range, 0);
        factors_.Read(sources[s].data, at.first, at.count,
                      one.sums.data() + (at.first - all.first));
        there += at.count;
      }
      LOCKSTEP_CHECK(there == all.count, "I1: {} of the {} sums of bucket {}", there, all.count,
                     bucket);
      gathered.push_back(std::move(one));
      ranges.push_back(layout_.bucket(bucket));
      parameters += ranges.back().count;
    }
    ForEach(Pieces(ranges), [&](const Piece& of_bucket) {
      const Gathered& from = gathered[of_bucket.of];
      std::vector<float> gradient(std::min(of_bucket.range.count, kHotBytes / sizeof(float)));
      for (const FloatRange& piece : CutPieces(of_bucket.range, kHotBytes)) {
        factors_.Gradient(from.known, from.sums.data(), piece, gradient.data());
        use(piece, gradient.data());
      }
    });
    for (const Gathered& from : gathered) factors_.Keep(from.known, from.sums.data(), last);
  }
}

event::OpDone Operations::Run(const action::UpdateHeld& update) {
  float clip = 1.0f;
  if (update.clip > 0) {
    const float* norms = buffers_.At(update.sums) + layout_.norm_offset();
    const double squares =
        SumOfSquares({{norms, layout_.numbers_per_norm() * layout_.grain_count()}});
    clip = ClipFactorOf(squares, update.scale, update.clip);
  }
  const UpdateScalars scalars{.scale = update.scale,
                              .clip_factor = clip,
                              .learning_rate = update.learning_rate,
                              .fraction = update.fraction,
                              .steps = update.steps};
  if (buffers_.held() != nullptr) {
    UpdateOnDevice(update, scalars);
  } else {
    UpdateOnHost(update, scalars);
  }
  event::OpDone done;
  done.op = update.op;
  return done;
}

// Piece by piece, so that the sums can give way to the parameters where they lie.
void Operations::UpdateOnHost(const action::UpdateHeld& update, const UpdateScalars& scalars) {
  const float* from = buffers_.At(update.from);
  float* to = buffers_.At(update.sums);
  ForEach(Pieces(update.ranges), [&](const Piece& of_range) {
    std::vector<float> sums(std::min(of_range.range.count, kHotBytes / sizeof(float)));
    for (const FloatRange& piece : CutPieces(of_range.range, kHotBytes)) {
      std::memcpy(sums.data(), to + piece.first, piece.count * sizeof(float));
      std::memcpy(to + piece.first, from + piece.first, piece.count * sizeof(float));
      Update(scalars, piece, to + piece.first, sums.data());
    }
  });
}

// The same with as much at once as there is room for: all parameters of it aside, then updated by
// the sums, then to where those are. In the order in which the state lies, so that a device can do
// many pieces at once.
void Operations::UpdateOnDevice(const action::UpdateHeld& update, const UpdateScalars& scalars) {
  HeldState& held = *buffers_.held();
  const float* const from = buffers_.At(update.from);
  float* const to = buffers_.At(update.sums);
  std::vector<HeldState::Part> parts;
  for (const FloatRange& range : update.ranges) {
    std::ranges::copy(held.Cut(range), std::back_inserter(parts));
  }
  std::ranges::sort(parts, {},
                    [](const HeldState::Part& part) { return std::pair(part.shard, part.at); });
  std::vector<Piece> pieces;
  for (const HeldState::Part& part : parts) pieces.push_back({pieces.size(), part.range});
  aside_.Use(pieces, [&](std::span<const AsideRoom::Aside> now) {
    for (const auto& [piece, aside] : now) {
      memory_.Copy(aside, from + piece.range.first, piece.range.count, /*large=*/true);
    }
    for (const auto& [piece, aside] : now) {
      const HeldState::Part& part = parts[piece.of];
      float* state = held.ToDevice(part.shard) + part.at + (piece.range.first - part.range.first);
      std::vector<float*> tensors;
      for (std::uint32_t t = 0; t < state_tensors_; ++t) {
        tensors.push_back(state + t * held.floats(part.shard));
      }
      optimizer_.ApplyBy(memory_.update_loops(), scalars,
                         {.first = piece.range.first,
                          .count = piece.range.count,
                          .parameters = aside,
                          .state = tensors,
                          .gradient_sum = to + piece.range.first});
    }
    for (const auto& [piece, aside] : now) {
      memory_.Copy(to + piece.range.first, aside, piece.range.count, /*large=*/true);
    }
    memory_.Barrier();  // others are put there next
  });
  memory_.Finish();
}

event::OpDone Operations::Run(const action::TakeParameters& take) {
  event::OpDone done;
  done.op = take.op;
  NoteStateWritten();
  float* parameters = buffers_.parameters();
  const std::vector<std::optional<OpenSource>> sources = sources_.Open(take.from);
  const std::vector<Piece> pieces = Pieces(RangesOf(take.from));
  const bool large = Large(pieces);
  ForEach(pieces, [&](const Piece& piece) {
    const auto& open = sources[piece.of];
    const FloatRange& range = piece.range;
    if (open) {
      memory_.Copy(parameters + range.first, open->Floats(range.first), range.count, large);
    }
  });
  memory_.Finish();
  done.torn = !StillValid(sources);
  done.digest = DigestOfBucket(take.digest_bucket);
  return done;
}

event::OpDone Operations::Run(const action::CopyState& copy) {
  const FloatRange bucket = layout_.copy(copy.bucket);
  float* to = buffers_.At(copy.to);
  std::vector<FloatRange> ranges;
  std::vector<std::uint32_t> tensors;
  for (std::uint32_t t = 0; t <= state_tensors_; ++t) {
    for (const FloatRange& range : layout_.InStateTensor(t, state_tensors_, bucket)) {
      ranges.push_back(range);
      tensors.push_back(t);
    }
  }
  const std::vector<Piece> pieces = Pieces(ranges);
  const bool large = Large(pieces);
  ForEach(pieces, [&](const Piece& piece) {
    const std::uint32_t tensor = tensors[piece.of];
    memory_.Copy(to + tensor * layout_.largest_copy() + (piece.range.first - bucket.first),
                 buffers_.At({BufferKind::kState, tensor, {}}) + piece.range.first,
                 piece.range.count, large);
  });
  memory_.Finish();
  event::OpDone done;
  done.op = copy.op;
  return done;
}

event::OpDone Operations::Run(const action::TakeSnapshot& take) {
  const bool checkpoint = take.kind == action::SnapshotKind::kCheckpoint;
  const std::uint32_t tensors = checkpoint ? 1 + state_tensors_ : 1;
  // Of other parameters than the own ones no other snapshot is a copy.
  const bool own = take.parameters.kind == BufferKind::kState;
  if (!own) NoteStateWritten();
  for (std::uint32_t t = 0; t < tensors; ++t) {
    float* to = buffers_.BeginSnapshot(t, take.kind, changes_.load(std::memory_order_relaxed));
    if (to == nullptr) continue;
    if (t > 0 && buffers_.held() != nullptr) {
      buffers_.held()->Read(t, to);
      continue;
    }
    const float* from = buffers_.At(t == 0 ? take.parameters : BufferId{BufferKind::kState, t, {}});
    const std::vector<Piece> pieces =
        Pieces(layout_.InStateTensor(t, state_tensors_, {0, layout_.parameter_count()}));
    const bool large = Large(pieces);
    ForEach(pieces, [&](const Piece& piece) {
      const FloatRange& range = piece.range;
      if (checkpoint && !memory_.on_host()) {
        memory_.ToHost(to + range.first, from + range.first, range.count * sizeof(float));
      } else {
        memory_.Copy(to + range.first, from + range.first, range.count, large);
      }
    });
  }
  memory_.Finish();
  if (!own) NoteStateWritten();
  if (checkpoint) buffers_.NoteAccount();
  event::OpDone done;
  done.op = take.op;
  return done;
}

event::OpDone Operations::Run(const action::DigestState& digest) {
  Sha256 sha;
  ReadByHost(buffers_.parameters(), layout_.parameter_count(),
             [&](std::span<const float> piece) { sha.Update(piece); });
  event::OpDone done;
  done.op = digest.op;
  done.text = sha.FinishHex();
  return done;
}

event::OpDone Operations::Run(const action::DigestReplica& digest) {
  DigestStream stream;
  for (std::uint32_t t = 0; t <= state_tensors_; ++t) {
    ReadByHost(buffers_.At({BufferKind::kState, t, {}}), layout_.parameter_count(),
               [&](std::span<const float> piece) { stream.Update(std::as_bytes(piece)); });
  }
  event::OpDone done;
  done.op = digest.op;
  done.replica = stream.Digest();
  return done;
}

}  // namespace lockstep::worker
