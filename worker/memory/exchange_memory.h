// The memory that a worker's gradients, sums, parameters and optimizer state lie in, and what is
// done to them there: the host's (host_memory.h) or a device's that the host cannot touch. Nobody
// else follows a pointer into memory that is not on_host().
//
// Bits do not depend on where the memory is: every operation has the results of the CPU's
// (exchange/reduce.h, optimizer/rules.h).
//
// Threads. Operations are the reduction thread's. They take effect in the order in which they are
// asked for, and are done when Finish returns; but of those of one kind that are asked for one
// behind the other (sums, squares, copies, widening, an optimizer's loops) none touches what
// another one writes, for a device may do them at once. Everything else: any thread, done when it
// returns. What fails for want of a device that works throws a DeviceError (compute/compute.h),
// but where an error is returned.
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

  // Zeroed, aligned to 64 bytes or better. kUnavailable where there is not so much left, or the
  // device fails.
  virtual Result<std::byte*> Allocate(std::size_t bytes) = 0;
  virtual void Free(std::byte* memory, std::size_t bytes) = 0;
  // All of what was allocated will be written, as soon as any of it is: large pages cost nothing.
  virtual void ExpectWhole(std::byte* /*memory*/, std::size_t /*bytes*/) {}
  // Little of it will be written, here and there: large pages would be of no use.
  virtual void ExpectLittle(std::byte* /*memory*/, std::size_t /*bytes*/) {}
  // What lies there is needed no more: whole pages of it are given back, where they can be. Any
  // thread.
  virtual void GiveBack(std::byte* /*memory*/, std::size_t /*bytes*/) {}
  // How many of these bytes take memory. Any thread, at any time.
  virtual std::size_t Backed(const std::byte* /*memory*/, std::size_t bytes) const { return bytes; }

  // The device is the calling thread's from here on, for a library that works with what is the
  // thread's: UCX. All calls here choose it themselves. kUnavailable where it cannot be.
  virtual Status EnterThread() { return {}; }

  // --- operations
  // `large`: more is written, of which this is a part, than stays in the caches.
  // False as of the function of this name. A device, which nobody waits for here, says true always:
  // Finish tells.
  virtual bool WeightedSum(std::span<const Input> inputs, float* out, std::size_t n,
                           bool large) = 0;
  virtual void SumOfSquaresByGrain(const float* data, std::size_t n, std::size_t grain,
                                   double* out) = 0;
  virtual const rules::Loops& update_loops() const = 0;
  virtual void Copy(float* to, const float* from, std::size_t n, bool large) = 0;
  // As the functions of their names on numbers of 16 bits (narrow.h), with what is returned as
  // above; the squares are of the numbers widened. Copies of FP32 and of these are of one kind.
  virtual bool WeightedSum(NumberType type, std::span<const NarrowInput> inputs, std::uint16_t* out,
                           std::size_t n, const Rounding& rounding, std::uint64_t first) = 0;
  virtual void SumOfSquaresByGrain(NumberType type, const std::uint16_t* data, std::size_t n,
                                   std::size_t grain, double* out) = 0;
  virtual void Widen(NumberType type, const std::uint16_t* from, float* to, std::size_t n) = 0;
  virtual void Copy(std::uint16_t* to, const std::uint16_t* from, std::size_t n) = 0;
  // What is asked for behind this comes after what was asked for before, of whichever kind.
  virtual void Barrier() {}
  // False: a sum that was asked for since the last time is infinite or not a number, or does not
  // fit into 16 bits, and WeightedSum did not say so.
  virtual bool Finish() = 0;

  // None of the values is infinite or not a number. One pass over them. Of what operations have
  // written, once they are done.
  virtual bool AllFinite(const float* data, std::size_t n) = 0;
  // As narrow.h's.
  virtual bool Narrow(NumberType type, const float* from, std::uint16_t* to, std::size_t n,
                      const Rounding& rounding, std::uint64_t first) = 0;

  // --- between here and the host's memory
  struct HostCopy {
    void* host;
    const void* from;
    std::size_t bytes;
  };
  // Quick where `host` is pinned.
  virtual void ToHost(std::span<const HostCopy> copies) = 0;
  void ToHost(void* host, const void* from, std::size_t bytes) {
    const HostCopy copy{host, from, bytes};
    ToHost({&copy, 1});
  }
  virtual void FromHost(void* to, const void* host, std::size_t bytes) = 0;
  virtual void Zero(float* to, std::size_t n) = 0;
  // To stage pieces through. Null where the memory is the host's; lives as long as this object.
  virtual transport::DeviceCopies* copies() = 0;

  // --- between here and other workers of this host
  // For memory that they read, and theirs: what it imports may stand as a source in operations and
  // ToHost. Null where the memory is the host's; lives as long as this object.
  virtual transport::DeviceSharing* sharing() = 0;

  // --- beside a program that computes there on streams of its own
  // Null where the memory is the host's; lives as long as this object.
  virtual ProgramStreams* streams() = 0;
};

}  // namespace lockstep::worker
