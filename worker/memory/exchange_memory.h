// The memory that holds a worker's gradients, sums, parameters and optimizer state, and the
// operations on it. It is the host's (host_memory.h), or a device's that the host cannot touch. No
// other code follows a pointer into memory that is not on_host().
//
// Bits do not depend on the place of the memory: every operation has the results of the CPU's
// (memory/reduce.h, optimizer/rules.h).
//
// Threads. The reduction thread calls the operations. They take effect in the order of the calls,
// and are done when Finish returns. Consecutive operations of one kind (sums, squares, copies,
// widening, an optimizer's loops) must not touch memory that another of them writes, for a device
// may do them at once. Any thread may call all other functions; they are done when they return. A
// device that fails throws a DeviceError (compute/compute.h), except where an error is returned.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"
#include "worker/memory/narrow.h"
#include "worker/memory/reduce.h"

namespace lockstep::transport {
class DeviceCopies;
class DeviceSharing;
}  // namespace lockstep::transport

namespace lockstep::worker {

class ProgramStreams;

namespace rules {
class Loops;
}

class ExchangeMemory {
 public:
  virtual ~ExchangeMemory() = default;

  virtual bool on_host() const = 0;

  // The memory is zeroed, aligned to 64 bytes or better. kUnavailable where there is too little, or
  // the device fails.
  virtual Result<std::byte*> Allocate(std::size_t bytes) = 0;
  virtual void Free(std::byte* memory, std::size_t bytes) = 0;
  // All of the allocation will be written, as soon as any of it is: large pages cost nothing.
  virtual void ExpectWhole(std::byte* /*memory*/, std::size_t /*bytes*/) {}
  // Little of it will be written, in scattered places: large pages would be of no use.
  virtual void ExpectLittle(std::byte* /*memory*/, std::size_t /*bytes*/) {}
  // The contents are not needed any more: whole pages are given back, where possible. Any thread
  // may call it.
  virtual void GiveBack(std::byte* /*memory*/, std::size_t /*bytes*/) {}
  // How many of these bytes take memory. Any thread may call it, at any time.
  virtual std::size_t Backed(const std::byte* /*memory*/, std::size_t bytes) const { return bytes; }

  // Makes the device the calling thread's from here on, for a library that uses the thread's
  // device: UCX. All calls here choose the device themselves. kUnavailable where it cannot be
  // chosen.
  virtual Status EnterThread() { return {}; }

  // --- operations
  // `large`: the output is a part of more data than fits into the caches. False: as for the
  // function of this name. A device does not wait here and always returns true: Finish tells.
  virtual bool WeightedSum(std::span<const Input> inputs, float* out, std::size_t n,
                           bool large) = 0;
  virtual void SumOfSquaresByGrain(const float* data, std::size_t n, std::size_t grain,
                                   double* out) = 0;
  virtual const rules::Loops& update_loops() const = 0;
  virtual void Copy(float* to, const float* from, std::size_t n, bool large) = 0;
  // Like the functions of their names on numbers of 16 bits (narrow.h), with results as above; the
  // squares are those of the widened numbers. Copies of FP32 and of 16-bit numbers are of one kind.
  virtual bool WeightedSum(NumberType type, std::span<const NarrowInput> inputs, std::uint16_t* out,
                           std::size_t n, const Rounding& rounding, std::uint64_t first) = 0;
  virtual void SumOfSquaresByGrain(NumberType type, const std::uint16_t* data, std::size_t n,
                                   std::size_t grain, double* out) = 0;
  virtual void Widen(NumberType type, const std::uint16_t* from, float* to, std::size_t n) = 0;
  virtual void Copy(std::uint16_t* to, const std::uint16_t* from, std::size_t n) = 0;
  // Later operations come after earlier ones, of whatever kind.
  virtual void Barrier() {}
  // False: a sum since the last call is infinite or not a number, or does not fit into 16 bits, and
  // WeightedSum did not report it.
  virtual bool Finish() = 0;

  // True if none of the values is infinite or not a number. It takes one pass over them. It sees
  // the output of operations that are done.
  virtual bool AllFinite(const float* data, std::size_t n) = 0;
  // Like narrow.h's.
  virtual bool Narrow(NumberType type, const float* from, std::uint16_t* to, std::size_t n,
                      const Rounding& rounding, std::uint64_t first) = 0;

  // --- between here and the host's memory
  struct HostCopy {
    void* host;
    const void* from;
    std::size_t bytes;
  };
  // It is fast where `host` is pinned.
  virtual void ToHost(std::span<const HostCopy> copies) = 0;
  void ToHost(void* host, const void* from, std::size_t bytes) {
    const HostCopy copy{host, from, bytes};
    ToHost({&copy, 1});
  }
  virtual void FromHost(void* to, const void* host, std::size_t bytes) = 0;
  virtual void Zero(float* to, std::size_t n) = 0;
  // Copies for staging pieces. It is null where the memory is the host's; it lives as long as this
  // object.
  virtual transport::DeviceCopies* copies() = 0;

  // --- between here and other workers of this host
  // Sharing for memory that peers read, and for theirs: imported memory may be a source in
  // operations and ToHost. It is null where the memory is the host's; it lives as long as this
  // object.
  virtual transport::DeviceSharing* sharing() = 0;

  // --- beside a program that computes there on streams of its own
  // It is null where the memory is the host's; it lives as long as this object.
  virtual ProgramStreams* streams() = 0;
};

}  // namespace lockstep::worker
