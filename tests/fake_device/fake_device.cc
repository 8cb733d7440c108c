#include "tests/fake_device/fake_device.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"

namespace lockstep::worker {

FakeAddresses::~FakeAddresses() { LOCKSTEP_CHECK(blocks_.empty(), "the device's memory leaks"); }

std::byte* FakeAddresses::Allocate(std::size_t bytes) {
  transport::UniqueFd file;
  return Export(bytes, file);
}

std::byte* FakeAddresses::Export(std::size_t bytes, transport::UniqueFd& file) {
  bytes = std::max<std::size_t>(bytes, 1);
  file = transport::UniqueFd(::memfd_create("fake-device", MFD_CLOEXEC));
  LOCKSTEP_CHECK(file && ::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0, "no memory");
  return Map(file.get(), bytes, Own::kYes);
}

std::byte* FakeAddresses::Import(const transport::UniqueFd& file, std::size_t bytes) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || static_cast<std::size_t>(status.st_size) < bytes) {
    return nullptr;
  }
  return Map(file.get(), bytes, Own::kNo);
}

std::byte* FakeAddresses::Map(int file, std::size_t bytes, Own own) {
  const int access = own == Own::kYes ? PROT_READ | PROT_WRITE : PROT_READ;
  void* device = ::mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, file, 0);
  void* alias = ::mmap(nullptr, bytes, access, MAP_SHARED, file, 0);
  LOCKSTEP_CHECK(device != MAP_FAILED && alias != MAP_FAILED, "no memory");
  const std::lock_guard lock(mutex_);
  blocks_.emplace(static_cast<std::byte*>(device),
                  Block{bytes, static_cast<std::byte*>(alias), own == Own::kYes});
  if (own == Own::kYes) own_bytes_ += bytes;
  most_bytes_ = std::max(most_bytes_, own_bytes_);
  return static_cast<std::byte*>(device);
}

void FakeAddresses::Free(const void* device) {
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(static_cast<const std::byte*>(device));
  LOCKSTEP_CHECK(block != blocks_.end(), "not the device's memory");
  ::munmap(const_cast<std::byte*>(block->first), block->second.bytes);
  ::munmap(block->second.alias, block->second.bytes);
  if (block->second.own) own_bytes_ -= block->second.bytes;
  blocks_.erase(block);
}

std::size_t FakeAddresses::most_bytes() const {
  const std::lock_guard lock(mutex_);
  return most_bytes_;
}

std::byte* FakeAddresses::Find(const std::byte* device, std::size_t bytes) const {
  if (device == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  auto block = blocks_.upper_bound(device);
  LOCKSTEP_CHECK(block != blocks_.begin(), "not the device's memory");
  --block;
  const auto offset = static_cast<std::size_t>(device - block->first);
  LOCKSTEP_CHECK(offset <= block->second.bytes && bytes <= block->second.bytes - offset,
                 "not the device's memory");
  return block->second.alias + offset;
}

}  // namespace lockstep::worker
