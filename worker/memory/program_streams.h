// The streams on which a program computes in a device's memory while the exchange works there too.
// It is for the C interface; the built-in trainer uses HostLink (compute/compute.h). Nothing that
// they write is read before they have completed it.
//
// The program's threads make all calls, several at once too, and get the DeviceErrors.
#pragma once

#include <functional>
#include <memory>

namespace lockstep::worker {

class ProgramStreams {
 public:
  virtual ~ProgramStreams() = default;

  // `stream`: a stream of the device's programs. For a CUDA device it is a cudaStream_t; null is
  // its default stream.
  //
  // `then` is called when all earlier work of the stream is done. Its thread may be the device's,
  // so it must not take long. Where the device fails, it is not called: Await reports that. The
  // stream continues meanwhile.
  virtual void After(void* stream, std::function<void()> then) = 0;
  // Sleeps until all earlier work of the stream is done and no `then` will be called any more.
  virtual void Await(void* stream) = 0;
  // Returns when no `then` will be called any more, whatever state the device is in.
  virtual void Settle() = 0;
  // While the result exists, the calling thread may use the device's memory. Afterwards the
  // thread's current device is what it was before.
  virtual std::shared_ptr<void> Visit() = 0;
};

}  // namespace lockstep::worker
