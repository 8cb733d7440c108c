// The messages of the coordinator to a worker, on its way from the network thread to the data
// plane. Before the worker has begun there is no plane: messages wait here, the first of them for
// whoever called Session::Join. Afterwards each goes through at once.
//
// A coordinator that says what it cannot say yet, or too much, is listened to no more.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "base/messages.h"
#include "base/result.h"
#include "base/time.h"

namespace lockstep::worker {

class CoordinatorInbox {
 public:
  // Called with the inbox locked, so in order, and never after Stop.
  struct Receiver {
    std::function<void(msg::ToWorker)> on_message;
    std::function<void(std::string reason)> on_gone;  // the connection is closed; once, last
  };
  // `on_broken`: the coordinator broke the protocol before this worker had begun.
  explicit CoordinatorInbox(std::function<void(const Error&)> on_broken)
      : on_broken_(std::move(on_broken)) {}

  // --- network thread
  void Put(msg::ToWorker message);
  void Close(const Error& error);

  // --- the caller of Session::Join and Begin
  // The first message that waits.
  Result<msg::ToWorker> Wait(Duration timeout);
  // When the Welcome came, once it was waited for.
  Time welcomed_at() const { return welcomed_at_; }
  // The coordinator is about to hear that this worker is ready: it may say anything then.
  void ExpectAll();
  // `receiver` gets what waits, and from now on all that comes.
  void PassTo(Receiver receiver);

  // --- any thread
  // Runs `task` in order with what is passed on; false, and does nothing, unless that has begun and
  // Stop was not called.
  bool IfPassing(const std::function<void()>& task);
  // All that still comes is for nobody. When it returns, all that was being passed on is through.
  void Stop();

 private:
  const std::function<void(const Error&)> on_broken_;
  std::mutex mutex_;  // of all below
  std::condition_variable wake_;
  std::deque<msg::ToWorker> waiting_;  // empty once there is a receiver
  std::optional<Error> closed_;        // what who waits is told: closed, or broken before that
  std::optional<std::string> gone_;    // the connection, and why
  std::optional<Receiver> receiver_;
  Time welcomed_at_;
  bool all_expected_ = false;
  bool broken_ = false;
  bool stopped_ = false;
};

}  // namespace lockstep::worker
