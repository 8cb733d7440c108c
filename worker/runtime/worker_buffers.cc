#include "worker/runtime/worker_buffers.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "base/free_memory.h"
#include "worker/compute/compute.h"

namespace lockstep::worker {

std::string BlockName(const BufferId& buffer) {
  return fmt::format("{}{}", buffer.kind == BufferKind::kContribution ? "contribution" : "sum",
                     buffer.index);
}

namespace {

// Of the pages, usually of so many bytes, that they lie in.
std::uint64_t BytesOfFactors(const Layout& layout) {
  constexpr std::uint64_t kPage = 4096;
  std::uint64_t bytes = 0;
  for (const FloatRange& range : layout.FactorsWithin({0, layout.parameter_count()})) {
    bytes += (range.count * sizeof(float) + 2 * kPage - 1) / kPage * kPage;
  }
  return bytes;
}

}  // namespace

WorkerBuffers::WorkerBuffers(const Layout& layout, std::uint32_t state_tensors,
                             std::shared_ptr<ExchangeMemory> memory, NumberType type)
    : memory_(memory ? std::move(memory) : std::make_shared<HostMemory>()),
      type_(type),
      parameter_count_(layout.parameter_count()),
      contribution_numbers_(layout.contribution_numbers()),
      sum_floats_(layout.sum_floats()),
      state_out_floats_((1 + std::uint64_t{state_tensors}) * layout.largest_copy()),
      whole_(layout.whole()),
      has_factors_(layout.rank() > 0),
      factor_bytes_(BytesOfFactors(layout)),
      state_tensors_(state_tensors) {
  LOCKSTEP_CHECK(worker::NumberBytes(type) == layout.number_bytes(), "numbers of {} bytes, not {}",
                 layout.number_bytes(), worker::NumberBytes(type));
  LOCKSTEP_CHECK(!layout.compressed() || memory_->on_host(), "not all of a gradient, on a device");
}

Result<std::unique_ptr<WorkerBuffers>> WorkerBuffers::Make(const Layout& layout,
                                                           std::uint32_t state_tensors, bool arena,
                                                           std::shared_ptr<ExchangeMemory> memory,
                                                           NumberType type, Parts parts,
                                                           std::uint32_t shards) {
  std::unique_ptr<WorkerBuffers> buffers(
      new WorkerBuffers(layout, state_tensors, std::move(memory), type));
  const std::uint32_t gradients = layout.compressed()         ? 1 + kMaxParts
                                  : type != NumberType::kFp32 ? 1
                                                              : 0;
  std::vector<BufferId> shared;
  for (std::uint32_t i = 0; i < kContributionBuffers; ++i)
    shared.push_back({BufferKind::kContribution, i, {}});
  for (std::uint32_t i = 0; i < kSumBuffers; ++i) shared.push_back({BufferKind::kSum, i, {}});
  std::vector<BufferId> own;
  // The state of a program's own update is one run of memory, in the pages of its first tensor.
  std::uint32_t state_runs = layout.whole() ? std::min(state_tensors, 1u) : state_tensors;
  if (parts == Parts::kSumsAndState && !buffers->memory().on_host()) {
    buffers->held_.emplace(layout, shards, state_tensors, buffers->memory());
    state_runs = 0;
  }
  for (std::uint32_t i = 0; i <= state_runs; ++i) own.push_back({BufferKind::kState, i, {}});
  for (std::uint32_t i = 0; i < kStateOutBuffers; ++i)
    own.push_back({BufferKind::kStateOut, i, {}});
  std::erase_if(own, [&](const BufferId& id) { return buffers->IsSpare(id); });
  if (buffers->memory().on_host()) {
    // What no job does without: a page is taken when it is touched, and of the shared buffers not
    // all need be. Those of this round and of the one before it are.
    std::uint64_t bytes = std::min(gradients, 2u) * layout.parameter_count() * sizeof(float);
    // Apart, the sums of others and an own shard of three rounds are no more than that either.
    for (const BufferId& id : shared) {
      const bool held = parts == Parts::kSumsAndState && id.kind == BufferKind::kSum;
      bytes += id.index < 2 && !held ? buffers->Bytes(id) : 0;
    }
    for (const BufferId& id : own) {
      const bool whole = id.kind == BufferKind::kState && id.index == 0;
      if (parts == Parts::kSumsAndState && !whole) continue;
      // Whole copies of the state, and those of long buckets, are made when somebody joins, and
      // seldom two at once.
      const bool spare = (layout.whole() || layout.rank() > 0) && id.kind == BufferKind::kStateOut;
      if (!spare) bytes += buffers->PagesOf(id) - buffers->BytesForFactors(id);
    }
    if (layout.whole()) bytes += layout.parameter_count() * sizeof(float);
    const Status fits =
        CheckMemory(bytes, fmt::format("memory for the gradients, sums and state of {} parameters",
                                       layout.parameter_count()));
    if (!fits) return fits.error();
  }
  if (arena) {
    std::vector<transport::BlockSpec> specs;
    for (const BufferId& id : shared) {
      specs.push_back(
          {.name = BlockName(id),
           .bytes = buffers->Bytes(id),
           .page_aligned = true,
           .spare = buffers->memory().on_host()
                        ? id.index >= 2 || (parts != Parts::kNone && id.kind == BufferKind::kSum)
                        : buffers->IsSpare(id)});
    }
    auto made = transport::Arena::Create(specs, buffers->memory().sharing());
    if (!made) return made.error();
    buffers->arena_.emplace(std::move(*made));
  } else {
    std::ranges::copy_if(shared, std::back_inserter(own),
                         [&](const BufferId& id) { return !buffers->IsSpare(id); });
  }
  for (const BufferId& id : own) {
    auto pages = Pages::Reserve(buffers->memory(), buffers->PagesOf(id));
    if (!pages) return pages.error();
    // Copies for joiners are few buckets, if any.
    const bool in_parts =
        (parts != Parts::kNone && id.kind == BufferKind::kSum) ||
        (parts == Parts::kSumsAndState && id.kind == BufferKind::kState && id.index > 0) ||
        buffers->HoldsFactors(id);
    const std::uint64_t little = buffers->BytesForFactors(id);
    const std::uint64_t whole = buffers->PagesOf(id) - little;
    if (id.kind != BufferKind::kStateOut && !in_parts) {
      buffers->memory().ExpectWhole(pages->data(), whole);
    }
    if (little > 0) buffers->memory().ExpectLittle(pages->data() + whole, little);
    buffers->pages_.emplace(id, std::move(*pages));
  }
  const auto as_parameters = [&]() -> Result<Pages> {
    const std::uint64_t bytes = layout.parameter_count() * sizeof(float);
    auto pages = Pages::Reserve(buffers->memory(), bytes);
    if (pages) buffers->memory().ExpectWhole(pages->data(), bytes);
    return pages;
  };
  for (std::uint32_t i = 0; i < gradients; ++i) {
    auto pages = as_parameters();
    if (!pages) return pages.error();
    buffers->gradients_.push_back(std::move(*pages));
  }
  if (layout.whole()) {
    auto pages = as_parameters();
    if (!pages) return pages.error();
    buffers->update_gradient_.emplace(std::move(*pages));
  }
  return buffers;
}

std::uint64_t WorkerBuffers::PagesOf(const BufferId& buffer) const {
  const bool run = whole_ && buffer.kind == BufferKind::kState && buffer.index > 0;
  return Bytes(buffer) * (run ? state_tensors_ : 1);
}

std::uint64_t WorkerBuffers::Size(const BufferId& buffer) const {
  switch (buffer.kind) {
    case BufferKind::kSum:
    case BufferKind::kTaken:
      return sum_floats_;
    case BufferKind::kStateOut:
      return state_out_floats_;
    case BufferKind::kContribution:
    case BufferKind::kStaging:
      return contribution_numbers_;
    case BufferKind::kState:
      break;
  }
  return parameter_count_;
}

std::uint64_t WorkerBuffers::NumberBytes(const BufferId& buffer) const {
  return worker::NumberBytes(buffer.kind, worker::NumberBytes(type_));
}

bool WorkerBuffers::IsSpare(const BufferId& buffer) const {
  if (memory_->on_host()) return false;
  switch (buffer.kind) {
    case BufferKind::kContribution:
      return buffer.index > 0;
    case BufferKind::kSum:
      return buffer.index > 2;  // of three rounds they are there in every job
    case BufferKind::kStateOut:
      return true;
    case BufferKind::kState:
    case BufferKind::kStaging:
    case BufferKind::kTaken:
      break;
  }
  return false;
}

std::size_t WorkerBuffers::ArenaBlock(const BufferId& buffer) const {
  // In the order of Make.
  return buffer.kind == BufferKind::kContribution ? buffer.index
                                                  : kContributionBuffers + buffer.index;
}

Pages WorkerBuffers::Take(ExchangeMemory& memory, std::uint64_t bytes) {
  auto pages = Pages::Reserve(memory, bytes);
  if (!pages) throw DeviceError(pages.error().message);
  return std::move(*pages);
}

std::byte* WorkerBuffers::Data(const BufferId& buffer) {
  const bool shared = buffer.kind == BufferKind::kContribution || buffer.kind == BufferKind::kSum;
  if (shared && arena_) {
    const auto block = arena_->Back(ArenaBlock(buffer));
    if (!block) throw DeviceError(block.error().message);
    return block->data();
  }
  if (whole_ && buffer.kind == BufferKind::kState && buffer.index > 1) {
    LOCKSTEP_CHECK(buffer.index <= state_tensors_, "no tensor {} of state", buffer.index);
    return Data({BufferKind::kState, 1, {}}) + (buffer.index - 1) * Bytes(buffer);
  }
  const std::lock_guard lock(mutex_);
  auto found = pages_.find(buffer);
  if (found == pages_.end()) {
    const bool taken = buffer.kind == BufferKind::kTaken;
    LOCKSTEP_CHECK(taken || buffer.kind == BufferKind::kStaging || IsSpare(buffer),
                   "no buffer of kind {} index {}", static_cast<int>(buffer.kind), buffer.index);
    found = pages_.emplace(buffer, Take(*memory_, Bytes(buffer))).first;
    if (taken) memory_->ExpectWhole(found->second.data(), Bytes(buffer));
  }
  return found->second.data();
}

void WorkerBuffers::GiveBack(const BufferId& buffer, std::span<const FloatRange> kept) {
  const std::lock_guard lock(mutex_);
  const auto found = pages_.find(buffer);
  if (found == pages_.end()) return;
  const std::uint64_t bytes = NumberBytes(buffer);
  const auto give_back = [&](std::uint64_t from, std::uint64_t to) {
    if (from < to) memory_->GiveBack(found->second.data() + from, to - from);
  };
  std::uint64_t at = 0;
  for (const FloatRange& range : kept) {
    give_back(at, range.begin() * bytes);
    at = range.end() * bytes;
  }
  give_back(at, PagesOf(buffer));
}

float* WorkerBuffers::At(const BufferId& buffer) {
  LOCKSTEP_CHECK(NumberBytes(buffer) == sizeof(float), "FP32 in numbers of {} bytes",
                 NumberBytes(buffer));
  return reinterpret_cast<float*>(Data(buffer));
}

float* WorkerBuffers::Gradient(const BufferId& contribution) {
  return gradients_.empty() ? At(contribution) : reinterpret_cast<float*>(gradients_[0].data());
}

float* WorkerBuffers::BeginSnapshot(std::uint32_t tensor, action::SnapshotKind kind,
                                    std::uint64_t update) {
  ExchangeMemory& memory = kind == action::SnapshotKind::kCheckpoint ? host_ : *memory_;
  const std::lock_guard lock(mutex_);
  Snapshot& snapshot = snapshots_[{kind, tensor}];
  snapshot.update = update;
  if (kind != action::SnapshotKind::kCompute && memory_->on_host()) {
    const auto other = snapshots_.find({kind == action::SnapshotKind::kCheckpoint
                                            ? action::SnapshotKind::kEvaluation
                                            : action::SnapshotKind::kCheckpoint,
                                        tensor});
    if (other != snapshots_.end() && other->second.update == update) {
      snapshot.pages = other->second.pages;
      return nullptr;
    }
  }
  if (snapshot.pages == nullptr || snapshot.pages.use_count() > 1) {
    snapshot.pages = std::make_shared<Pages>(Take(memory, parameter_count_ * sizeof(float)));
  }
  return reinterpret_cast<float*>(snapshot.pages->data());
}

const float* WorkerBuffers::snapshot(std::uint32_t tensor, action::SnapshotKind kind) {
  const std::lock_guard lock(mutex_);
  return reinterpret_cast<const float*>(snapshots_.at({kind, tensor}).pages->data());
}

void WorkerBuffers::DropSnapshot(std::uint32_t tensor, action::SnapshotKind kind) {
  const std::lock_guard lock(mutex_);
  snapshots_.erase({kind, tensor});
}

void WorkerBuffers::ForgetSnapshots() {
  const std::lock_guard lock(mutex_);
  snapshots_.clear();
}

std::shared_ptr<const void> WorkerBuffers::Keep(const std::shared_ptr<WorkerBuffers>& buffers,
                                                const float* at) {
  const std::lock_guard lock(buffers->mutex_);
  for (const auto& [which, snapshot] : buffers->snapshots_) {
    if (snapshot.pages == nullptr || reinterpret_cast<const float*>(snapshot.pages->data()) != at)
      continue;
    // The pages go before what they are returned to.
    return std::make_shared<std::pair<std::shared_ptr<WorkerBuffers>, std::shared_ptr<Pages>>>(
        buffers, snapshot.pages);
  }
  return buffers;
}

// Pages of zeros that were read are none of their own.
std::uint64_t WorkerBuffers::BackedState(const BufferId& buffer, const Pages& pages) const {
  constexpr std::uint64_t kPage = 4096;
  const std::uint64_t little = BytesForFactors(buffer);
  if (little == 0) return pages.backed();
  const std::uint64_t whole = (PagesOf(buffer) - little) / kPage * kPage;
  return memory_->Backed(pages.data(), whole) +
         std::min<std::uint64_t>(memory_->Backed(pages.data() + whole, PagesOf(buffer) - whole),
                                 factor_bytes_ + kPage);
}

MemoryAccount WorkerBuffers::Backed() {
  MemoryAccount account;
  if (arena_) {
    for (std::size_t i = 0; i < arena_->blocks(); ++i) {
      if (!arena_->backed(i)) continue;
      const std::span<std::byte> block = arena_->block(i);
      (i < kContributionBuffers ? account.contributions : account.sums) +=
          memory_->Backed(block.data(), block.size());
    }
  }
  for (const Pages& gradient : gradients_) account.contributions += gradient.backed();
  const std::lock_guard lock(mutex_);
  if (update_gradient_) account.sums += update_gradient_->backed();
  for (const auto& [buffer, pages] : pages_) {
    switch (buffer.kind) {
      case BufferKind::kContribution:
        account.contributions += pages.backed();
        break;
      case BufferKind::kSum:
      case BufferKind::kTaken:
        account.sums += pages.backed();
        break;
      case BufferKind::kStaging:
        account.staging += pages.backed();
        break;
      case BufferKind::kState:
        account.state += BackedState(buffer, pages);
        break;
      case BufferKind::kStateOut:
        account.copies += pages.backed();
        break;
    }
  }
  if (held_) account.state += held_->backed();
  std::set<const Pages*> snapshots;
  for (const auto& [which, snapshot] : snapshots_) {
    if (!snapshots.insert(snapshot.pages.get()).second) continue;
    const bool factors = has_factors_ && which.second == state_tensors_;
    account.snapshots +=
        factors ? std::min(snapshot.pages->backed(), factor_bytes_) : snapshot.pages->backed();
  }
  return account;
}

void WorkerBuffers::NoteAccount() {
  const MemoryAccount now = Backed();
  const std::lock_guard lock(mutex_);
  if (now.total() > peak_.total()) peak_ = now;
}

MemoryAccount WorkerBuffers::peak() {
  const std::lock_guard lock(mutex_);
  return peak_;
}

Result<transport::RegionId> WorkerBuffers::Region(transport::Transport& transport,
                                                  const BufferId& buffer) {
  const auto found = regions_.find(buffer);
  if (found != regions_.end()) return found->second;
  auto region = transport.Register(
      memory_->on_host() ? transport::MemoryKind::kHost : transport::MemoryKind::kCuda,
      Data(buffer), Bytes(buffer));
  if (region) regions_.emplace(buffer, *region);
  return region;
}

}  // namespace lockstep::worker
