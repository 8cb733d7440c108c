#include "worker/runtime/transport_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "transport/staging/staged_transport.h"
#include "transport/tcp_sockets.h"

namespace lockstep::worker {

void TransportSet::Open(const transport::paths::Choice& choice) {
  TransportOffer offer{.name = choice.name, .address = {}, .error = {}};
  if (choice.maker.empty()) {
    offer.error = choice.why;
    offers_.push_back(std::move(offer));
    return;
  }
  // What the process listens on afterwards and did not before is this one's.
  const std::vector<std::string> before = transport::ListeningAddresses();
  transport::Options options = setup_.options;
  options.enter_data_thread = [this] { return memory_.EnterThread(); };
  auto made = transport::MakeTransport(choice.maker, std::move(options));
  transport::Capabilities library;
  if (made) library = (*made)->capabilities();
  if (made && !memory_.on_host() && !library.cuda_memory) {
    made = transport::MakeStagedTransport(std::move(*made), *memory_.copies(), setup_.piece_bytes);
  }
  Status started;
  std::unique_ptr<OpenTransport> open;
  if (made) {
    open = std::make_unique<OpenTransport>(user_, std::move(*made), choice.name, std::move(library),
                                           memory_, setup_.piece_bytes, setup_.fetch_patience);
    started = open->transport->Start(open.get());
  } else {
    started = made.error();
  }
  if (started.ok()) {
    offer.address = open->transport->address();
    open->transport->Post([opened = open.get()] { opened->probe.Open(); });
    all_.push_back(std::move(open));
    std::ranges::set_difference(
        transport::ListeningAddresses(), before,
        std::back_inserter(choice.maker == "tcp" ? ports_.tcp : ports_.ucx));
    ports_.ucx_listens = ports_.ucx_listens || choice.maker == "ucx";
    ports_.rdma = ports_.rdma || choice.maker == "ucx-rdma";
  } else {
    offer.error = started.error().message;
  }
  offers_.push_back(std::move(offer));
}

std::vector<std::string> TransportSet::names() const {
  std::vector<std::string> names;
  for (const auto& one : all_) names.push_back(one->name);
  return names;
}

Status TransportSet::CheckAnyOpen() const {
  if (!all_.empty()) return {};
  std::string reasons;
  for (const TransportOffer& offer : offers_) {
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", offer.name, offer.error);
  }
  return Error{ErrorCode::kUnavailable, fmt::format("no transport can be used here ({})", reasons)};
}

void TransportSet::Start() {
  OpenTransport* first = all_.front().get();
  first->transport->Post([this, first] {
    first->BecomeActive();
    RunWaiting(*first);
  });
  active_.store(first);
}

void TransportSet::Run(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  // One that is not active (any more, or yet) leaves it to the one that becomes it.
  OpenTransport* to = active_.load();
  to->transport->Post([this, to] {
    if (to->active()) RunNext();
  });
}

// Runs the first task, if there is one.
void TransportSet::RunNext() {
  std::function<void()> task;
  {
    const std::lock_guard lock(mutex_);
    if (tasks_.empty()) return;
    task = std::move(tasks_.front());
    tasks_.pop_front();
  }
  task();
}

// What was posted before the core arrived here; it may move on meanwhile.
void TransportSet::RunWaiting(const OpenTransport& here) {
  std::size_t tasks = 0;
  {
    const std::lock_guard lock(mutex_);
    tasks = tasks_.size();
  }
  for (; tasks > 0 && here.active(); --tasks) RunNext();
}

OpenTransport* TransportSet::Choose(const std::string& name) {
  OpenTransport* chosen = nullptr;
  for (auto& one : all_) {
    if (one->name == name && !one->closed) chosen = one.get();
  }
  if (chosen == nullptr) return nullptr;
  for (auto& one : all_) {
    if (one.get() == chosen) continue;
    one->transport->Post(
        [other = one.get()] { other->CloseAll("the job uses another transport"); });
  }
  return chosen;
}

void TransportSet::Activate(OpenTransport& to, std::function<void()> first) {
  active().BecomeInactive();
  active_.store(&to);
  to.transport->Post([this, &to, first = std::move(first)] {
    first();
    to.BecomeActive();
    RunWaiting(to);
  });
}

void TransportSet::CloseOthers() {
  for (auto& one : all_) {
    if (one.get() == &active() || one->closed) continue;
    one->closed = true;
    spdlog::info("{} is closed: the job uses {}", one->name, active().name);
    if (!closing_) closing_ = std::make_unique<TaskThread>("closing");
    closing_->Post([unused = one.get()] { unused->transport->Stop(); });
  }
}

void TransportSet::Stop() {
  closing_.reset();
  for (auto& one : all_) one->transport->Stop();
}

}  // namespace lockstep::worker
