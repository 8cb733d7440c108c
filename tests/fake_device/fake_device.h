// A device that is imitated so far that the host cannot touch its memory: each allocation is a
// memory file that is mapped twice, once at the device's address, where every access faults, and
// once where the imitation works on it.
//
// Memory that is shared with other processes is such a file too; theirs is mapped for the imitation
// to read.
//
// What is asked of it is done as late as it may be: computing and operations when somebody waits
// for them, copies on a thread of their own. Whoever does not wait finds what was there before.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "transport/mapping/os.h"
#include "worker/compute/compute.h"
#include "worker/memory/exchange_memory.h"

namespace lockstep::worker {

// The addresses. Any thread.
class FakeAddresses {
 public:
  FakeAddresses() = default;
  FakeAddresses(const FakeAddresses&) = delete;
  FakeAddresses& operator=(const FakeAddresses&) = delete;
  ~FakeAddresses();

  std::byte* Allocate(std::size_t bytes);
  void Free(const void* device);

  // The same as a file that another process can import.
  std::byte* Export(std::size_t bytes, transport::UniqueFd& file);
  // Null where the file is not so large.
  std::byte* Import(const transport::UniqueFd& file, std::size_t bytes);

  // Allocated at a time, at most.
  std::size_t most_bytes() const;

  // Where the imitation finds `count` elements; ends the process when they are not the device's.
  // Null stays null.
  template <class T>
  T* Host(const T* device, std::size_t count) const {
    return reinterpret_cast<T*>(
        Find(reinterpret_cast<const std::byte*>(device), count * sizeof(T)));
  }

 private:
  struct Block {
    std::size_t bytes = 0;
    std::byte* alias = nullptr;
    bool own = true;
  };
  std::byte* Find(const std::byte* device, std::size_t bytes) const;
  enum class Own : bool { kNo, kYes };
  std::byte* Map(int file, std::size_t bytes, Own own);

  mutable std::mutex mutex_;
  std::size_t own_bytes_ = 0;
  std::size_t most_bytes_ = 0;
  std::map<const std::byte*, Block> blocks_;  // by the device's address
};

// Computes as the CPU does, with the same bits.
std::unique_ptr<Compute> MakeFakeCompute(std::shared_ptr<FakeAddresses> addresses,
                                         const std::string& kind = "imitated");

// `kind`: devices of different kinds do not read each other's memory.
std::unique_ptr<ExchangeMemory> MakeFakeMemory(std::shared_ptr<FakeAddresses> addresses,
                                               const std::string& kind = "imitated");

// Whether a device is the calling thread's (ExchangeMemory::EnterThread).
bool EnteredThread();

}  // namespace lockstep::worker
