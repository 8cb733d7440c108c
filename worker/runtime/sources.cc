#include "worker/runtime/sources.h"

#include <utility>

namespace lockstep::worker {

void PeerArenas::Put(const MemberId& peer, Arena arena, std::function<Arena()> again) {
  std::lock_guard lock(mutex_);
  arenas_[peer] = {std::move(arena), std::move(again)};
}

void PeerArenas::Drop(const MemberId& peer) {
  std::lock_guard lock(mutex_);
  arenas_.erase(peer);
}

PeerArenas::Arena PeerArenas::Find(const MemberId& peer) const {
  std::lock_guard lock(mutex_);
  const auto found = arenas_.find(peer);
  return found == arenas_.end() ? nullptr : found->second.arena;
}

PeerArenas::Arena PeerArenas::Renew(const MemberId& peer) {
  Mapped before;
  {
    std::lock_guard lock(mutex_);
    const auto found = arenas_.find(peer);
    if (found == arenas_.end() || !found->second.again) return nullptr;
    before = found->second;
  }
  Arena made = before.again();
  if (!made) return nullptr;
  std::lock_guard lock(mutex_);
  const auto found = arenas_.find(peer);
  if (found != arenas_.end() && found->second.arena == before.arena) found->second.arena = made;
  return made;
}

std::optional<OpenSource> Sources::Open(const Source& source) {
  OpenSource open;
  if (!source.peer) {
    open.data = buffers_.Data(source.buffer);
    return open;
  }
  open.generation = source.generation;
  open.arena = arenas_.Find(*source.peer);
  for (const bool again : {false, true}) {
    if (again) open.arena = arenas_.Renew(*source.peer);
    if (!open.arena) return std::nullopt;
    const auto block = open.arena->Find(BlockName(source.buffer));
    if (!block || open.arena->bytes(*block) != buffers_.Bytes(source.buffer)) return std::nullopt;
    if (open.arena->Generation(*block) != source.generation) return std::nullopt;
    open.block = *block;
    open.data = open.arena->data(*block);
    if (open.data != nullptr) return open;
  }
  return std::nullopt;
}

// A peer that does not answer is asked once.
std::vector<std::optional<OpenSource>> Sources::Open(const std::vector<action::SourceRange>& from) {
  std::vector<std::optional<OpenSource>> sources;
  std::vector<Source> missing;
  for (const action::SourceRange& one : from) {
    const bool known = std::ranges::find(missing, one.source) != missing.end();
    sources.push_back(known ? std::nullopt : Open(one.source));
    if (!known && !sources.back()) missing.push_back(one.source);
  }
  return sources;
}

std::optional<std::vector<OpenSource>> Sources::OpenAll(
    const std::vector<action::SourceRange>& from) {
  std::vector<OpenSource> sources;
  for (const action::SourceRange& one : from) {
    auto open = Open(one.source);
    if (!open) return std::nullopt;
    sources.push_back(std::move(*open));
  }
  return sources;
}

}  // namespace lockstep::worker
