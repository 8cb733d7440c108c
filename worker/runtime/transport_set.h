// The transports of a worker. It opens and offers what may become the job's; the core lives on
// the data thread of one of them, the active one, and moves when the coordinator chooses another.
// When the job has begun the others are closed.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/messages.h"
#include "base/result.h"
#include "transport/paths/choice.h"
#include "transport/transport.h"
#include "worker/runtime/open_ports.h"
#include "worker/runtime/open_transport.h"
#include "worker/runtime/task_thread.h"

namespace lockstep::worker {

class TransportSet {
 public:
  struct Setup {
    transport::Options options;     // of each
    std::uint64_t piece_bytes = 0;  // the largest piece
    Duration fetch_patience{};      // FetchQueue's
  };
  TransportSet(TransportUser& user, ExchangeMemory& memory, Setup setup)
      : user_(user), memory_(memory), setup_(std::move(setup)) {}

  // --- before Start

  // Offers this one: opened, or with the reason why it cannot be had.
  void Open(const transport::paths::Choice& choice);
  const std::vector<TransportOffer>& offers() const { return offers_; }
  const OpenPorts& ports() const { return ports_; }
  std::vector<std::string> names() const;
  // kUnavailable, with what is wrong with each, when none is open.
  Status CheckAnyOpen() const;
  // The first one that is open becomes the active one.
  void Start();

  // --- any thread

  // Runs a task on the core's thread, in order with all other such tasks, also while the core
  // moves.
  void Run(std::function<void()> task);

  // --- the core's thread

  OpenTransport& active() { return *active_.load(); }
  // Closes the connections over all others; null: none of this name is open, nothing is done.
  OpenTransport* Choose(const std::string& name);
  // Makes `to`, which is not the active one, that. `first` runs on its thread before any event and
  // any task.
  void Activate(OpenTransport& to, std::function<void()> first);
  // The job has begun, over the active one and for good. The others that were offered are open in
  // vain.
  void CloseOthers();

  // Ends all of them. No callback runs after it.
  void Stop();

 private:
  void RunNext();
  void RunWaiting(const OpenTransport& here);

  TransportUser& user_;
  ExchangeMemory& memory_;
  const Setup setup_;
  std::vector<TransportOffer> offers_;
  OpenPorts ports_;
  std::vector<std::unique_ptr<OpenTransport>> all_;
  std::atomic<OpenTransport*> active_{nullptr};  // where the core lives or is about to
  std::mutex mutex_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  std::unique_ptr<TaskThread> closing_;      // ends transports; null: there were none to end
};

}  // namespace lockstep::worker
