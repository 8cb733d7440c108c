// The streams on which a program computes in a device's memory while the exchange works there too
// (the C interface; the built-in trainer's way is HostLink, compute/compute.h): nothing of what
// they write is read before they have come that far.
//
// All calls from the program's threads, several at once too, on which DeviceErrors are thrown.
#pragma once

#include <functional>
#include <memory>

namespace lockstep::worker {

class ProgramStreams {
 public:
  virtual ~ProgramStreams() = default;

  // `stream`: as the device's programs have it. Of a CUDA device a cudaStream_t, null its default
  // stream.
  //
  // `then` is called when all that was asked of the stream before is done, by a thread that may be
  // the device's and that it must not hold up. Where the device fails it is not: Await says so. The
  // stream goes on meanwhile.
  virtual void After(void* stream, std::function<void()> then) = 0;
  // Returns, asleep until then, when all that was asked of the stream before is done and no `then`
  // is to come any more.
  virtual void Await(void* stream) = 0;
  // Returns when no `then` is to come any more, whatever has become of the device.
  virtual void Settle() = 0;
  // As long as what it returns is there the calling thread may use the device's memory. Afterwards
  // the thread's current device is what it was before.
  virtual std::shared_ptr<void> Visit() = 0;
};

}  // namespace lockstep::worker
