#include "worker/runtime/updating.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/digest.h"

namespace lockstep::worker {
namespace {

// Pieces of parameters that are updated and read again, or of sums that are widened, have this
// size: with their sums and state they stay in a core's own cache.
constexpr std::uint64_t kHotBytes = 64u << 10;
static_assert(kHotBytes / sizeof(float) % kGrain == 0);
// A larger bucket is read once more for its digest, where several threads have updated it.
constexpr std::uint64_t kMostByOneBytes = 8u << 20;

// Stands for the slices that are digested as they are updated.
constexpr std::size_t kOfBucket = std::numeric_limits<std::size_t>::max();

// `squares`: of all sums.
float ClipFactorOf(double squares, float scale, double clip) {
  const double norm = static_cast<double>(scale) * std::sqrt(squares);
  return norm > clip ? static_cast<float>(clip / norm) : 1.0f;
}

}  // namespace

std::optional<float> Updating::ClipFactor(const action::Apply& apply) {
  if (apply.clip <= 0) return 1.0f;
  std::vector<OpenSource> sources;
  std::vector<Passes::Words> norms;
  const std::uint64_t number = layout_.number_bytes();
  for (const action::SourceRange& some : apply.norms) {
    auto open = sources_.Open(some.source);
    if (!open) return std::nullopt;
    norms.push_back({reinterpret_cast<const float*>(open->data + some.range.first * number),
                     some.range.count * number / sizeof(float)});
    sources.push_back(std::move(*open));
  }
  const double total = passes_.SumOfSquares(norms);
  if (!StillValid(sources)) return std::nullopt;
  return ClipFactorOf(total, apply.scale, apply.clip);
}

void Updating::Update(const UpdateScalars& scalars, const FloatRange& range, float* parameters,
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

void Updating::ForWidened(const std::vector<Piece>& pieces, const std::vector<OpenSource>& sums,
                          const std::function<void(const AsideRoom::Aside&)>& work) {
  aside_.Use(pieces, [&](std::span<const AsideRoom::Aside> now) {
    for (const auto& [piece, aside] : now) {
      memory_.Widen(buffers_.type(), sums[piece.of].Narrow(piece.range.first), aside,
                    piece.range.count);
    }
    for (const AsideRoom::Aside& one : now) work(one);
  });
}

void Updating::UpdateWidened(const UpdateScalars& scalars, const FloatRange& range,
                             const OpenSource& sums, std::uint32_t entries) {
  std::vector<float> wide(std::min(range.count, kHotBytes / sizeof(float)));
  for (const FloatRange& piece : CutPieces(range, kHotBytes)) {
    summing_.Widen(sums, entries, piece, wide.data());
    Update(scalars, piece, buffers_.parameters() + piece.first, wide.data());
  }
}

// What was torn is found before the program sees the gradient: an update cannot be taken back.
std::optional<event::OpDone> Updating::Gather(const action::Apply& apply) {
  event::OpDone torn;
  torn.op = apply.op;
  torn.torn = true;
  const auto clip = ClipFactor(apply);
  const auto sources = clip ? sources_.OpenAll(apply.slices) : std::nullopt;
  if (!sources) return torn;
  float* gradient = buffers_.update_gradient();
  const std::uint32_t entries = layout_.SumEntries(apply.parts);
  const float factor = apply.scale * *clip;
  const std::vector<Piece> pieces = passes_.Pieces(RangesOf(apply.slices));
  const bool large = Passes::Large(pieces);
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
    passes_.ForEach(pieces, [&](const Piece& of_slice) {
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
  changes_.fetch_add(1, std::memory_order_relaxed);
  return std::nullopt;
}

event::OpDone Updating::Apply(const action::Apply& apply) {
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
  changes_.fetch_add(1, std::memory_order_relaxed);
  if (layout_.rank() > 0) {
    ForFactored(apply, sources, [&](const FloatRange& range, const float* gradient) {
      Update(scalars, range, buffers_.parameters() + range.first, gradient);
    });
    done.torn = !StillValid(sources);
    done.digest = passes_.DigestOfBucket(apply.digest_bucket);
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
  const bool several = passes_.threads() > 1;
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
  std::vector<Piece> pieces = passes_.Pieces(ranges);
  if (!summing_.Plain(entries) && !memory_.on_host()) {
    ForWidened(pieces, sources, [&](const AsideRoom::Aside& one) {
      const FloatRange& range = one.piece.range;
      Update(scalars, range, parameters + range.first, one.at);
    });
    pieces.clear();
  }
  if (!of_bucket.empty()) pieces.insert(pieces.begin(), Piece{kOfBucket, {}});
  passes_.ForEach(pieces, [&](const Piece& piece) {
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
      digested == bucket.end() ? digest.Digest().low : passes_.DigestOfBucket(apply.digest_bucket);
  return done;
}

// Each number of a bucket may come out of all of its sums, so these are gathered first; of some
// buckets at a time, and then their pieces are shared out.
void Updating::ForFactored(const action::Apply& apply, const std::vector<OpenSource>& sources,
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
    passes_.ForEach(passes_.Pieces(ranges), [&](const Piece& of_bucket) {
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

event::OpDone Updating::UpdateHeld(const action::UpdateHeld& update) {
  float clip = 1.0f;
  if (update.clip > 0) {
    const float* norms = buffers_.At(update.sums) + layout_.norm_offset();
    const double squares =
        passes_.SumOfSquares({{norms, layout_.numbers_per_norm() * layout_.grain_count()}});
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
void Updating::UpdateOnHost(const action::UpdateHeld& update, const UpdateScalars& scalars) {
  const float* from = buffers_.At(update.from);
  float* to = buffers_.At(update.sums);
  passes_.ForEach(passes_.Pieces(update.ranges), [&](const Piece& of_range) {
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
void Updating::UpdateOnDevice(const action::UpdateHeld& update, const UpdateScalars& scalars) {
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

}  // namespace lockstep::worker
