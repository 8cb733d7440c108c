#include "worker/runtime/operations.h"

#include <spdlog/spdlog.h>

#include <span>
#include <utility>
#include <vector>

#include "worker/memory/sha256.h"

namespace lockstep::worker {

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
  const std::vector<Piece> pieces = passes_.Pieces(ranges);
  const bool large = layout_.rank() == 0
                         ? Passes::Large(pieces)
                         : Bytes(reduce) / (reduce.inputs.size() + 1) >= kLargeBytes;
  const auto slice_of = [&](const Piece& piece) {
    return Slice{reduce.slices[piece.of].bucket, piece.range};
  };
  std::atomic<bool> all_made{true};
  passes_.ForEach(pieces, large, [&](const Piece& piece) {
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
  const std::vector<Piece> pieces = passes_.Pieces(RangesOf(copy.from));
  const bool large = Passes::Large(pieces);
  passes_.ForEach(pieces, [&](const Piece& piece) {
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

void Operations::DropHeldState(const action::DropHeldState& drop) {
  if (buffers_.held() != nullptr) return buffers_.held()->Drop(drop.ranges);
  for (std::uint32_t t = 1; t <= state_tensors_; ++t) {
    auto* state = reinterpret_cast<std::byte*>(buffers_.At({BufferKind::kState, t, {}}));
    for (const FloatRange& range : drop.ranges) {
      memory_.GiveBack(state + range.first * sizeof(float), range.count * sizeof(float));
    }
  }
}

event::OpDone Operations::EndUpdate(std::uint64_t op, std::uint32_t digest_bucket) {
  event::OpDone done;
  done.op = op;
  done.digest = passes_.DigestOfBucket(digest_bucket);
  return done;
}

event::OpDone Operations::Run(const action::TakeParameters& take) {
  event::OpDone done;
  done.op = take.op;
  NoteStateWritten();
  float* parameters = buffers_.parameters();
  const std::vector<std::optional<OpenSource>> sources = sources_.Open(take.from);
  const std::vector<Piece> pieces = passes_.Pieces(RangesOf(take.from));
  const bool large = Passes::Large(pieces);
  passes_.ForEach(pieces, [&](const Piece& piece) {
    const auto& open = sources[piece.of];
    const FloatRange& range = piece.range;
    if (open) {
      memory_.Copy(parameters + range.first, open->Floats(range.first), range.count, large);
    }
  });
  memory_.Finish();
  done.torn = !StillValid(sources);
  done.digest = passes_.DigestOfBucket(take.digest_bucket);
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
  const std::vector<Piece> pieces = passes_.Pieces(ranges);
  const bool large = Passes::Large(pieces);
  passes_.ForEach(pieces, [&](const Piece& piece) {
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
        passes_.Pieces(layout_.InStateTensor(t, state_tensors_, {0, layout_.parameter_count()}));
    const bool large = Passes::Large(pieces);
    passes_.ForEach(pieces, [&](const Piece& piece) {
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
  passes_.ReadByHost(buffers_.parameters(), layout_.parameter_count(),
                     [&](std::span<const float> piece) { sha.Update(piece); });
  event::OpDone done;
  done.op = digest.op;
  done.text = sha.FinishHex();
  return done;
}

event::OpDone Operations::Run(const action::DigestReplica& digest) {
  DigestStream stream;
  for (std::uint32_t t = 0; t <= state_tensors_; ++t) {
    passes_.ReadByHost(buffers_.At({BufferKind::kState, t, {}}), layout_.parameter_count(),
                       [&](std::span<const float> piece) { stream.Update(std::as_bytes(piece)); });
  }
  event::OpDone done;
  done.op = digest.op;
  done.replica = stream.Digest();
  return done;
}

}  // namespace lockstep::worker
