#include "worker/runtime/coordinator_inbox.h"

#include <fmt/format.h>

#include <utility>

namespace lockstep::worker {
namespace {

// Before this worker is ready, of which each is small: members leave meanwhile.
constexpr std::size_t kMaxEarlyMessages = 8192;

bool MayComeEarly(const msg::ToWorker& message) {
  return std::holds_alternative<msg::Refuse>(message) ||
         std::holds_alternative<msg::MemberLeft>(message) ||
         std::holds_alternative<msg::Finish>(message) ||
         std::holds_alternative<msg::SetSlowdown>(message) ||
         std::holds_alternative<msg::AskToLeave>(message) ||
         std::holds_alternative<msg::Standbys>(message) ||
         std::holds_alternative<msg::Ping>(message);
}

}  // namespace

void CoordinatorInbox::Put(msg::ToWorker message) {
  std::lock_guard lock(mutex_);
  if (stopped_ || broken_) return;
  const bool welcome = welcomed_at_ == Time{} && std::holds_alternative<msg::Welcome>(message);
  if (welcome) welcomed_at_ = MonotonicNow();
  if (receiver_) {
    receiver_->on_message(std::move(message));
    return;
  }
  if ((!welcome && !all_expected_ && !MayComeEarly(message)) ||
      waiting_.size() >= kMaxEarlyMessages) {
    broken_ = true;
    const Error error{ErrorCode::kClosed,
                      "the coordinator broke the protocol: it says what cannot be said before "
                      "this worker is ready"};
    if (!closed_) closed_ = error;
    on_broken_(error);
  } else {
    waiting_.push_back(std::move(message));
  }
  wake_.notify_all();
}

// What came before is dealt with before: it may say why.
void CoordinatorInbox::Close(const Error& error) {
  std::lock_guard lock(mutex_);
  if (stopped_) return;
  gone_ = fmt::format("the connection to the coordinator is closed: {}", error.message);
  if (receiver_) {
    receiver_->on_gone(*gone_);
    return;
  }
  if (!closed_) closed_ = error;
  wake_.notify_all();
}

Result<msg::ToWorker> CoordinatorInbox::Wait(Duration timeout) {
  std::unique_lock lock(mutex_);
  if (!wake_.wait_for(lock, timeout, [this] { return closed_ || !waiting_.empty(); })) {
    return Error{ErrorCode::kTimeout, "the coordinator does not answer"};
  }
  if (waiting_.empty()) return *closed_;
  msg::ToWorker message = std::move(waiting_.front());
  waiting_.pop_front();
  return message;
}

void CoordinatorInbox::ExpectAll() {
  std::lock_guard lock(mutex_);
  all_expected_ = true;
}

void CoordinatorInbox::PassTo(Receiver receiver) {
  std::lock_guard lock(mutex_);
  receiver_ = std::move(receiver);
  for (msg::ToWorker& message : waiting_) receiver_->on_message(std::move(message));
  waiting_.clear();
  if (gone_) receiver_->on_gone(*gone_);
}

bool CoordinatorInbox::IfPassing(const std::function<void()>& task) {
  std::lock_guard lock(mutex_);
  if (!receiver_ || stopped_) return false;
  task();
  return true;
}

void CoordinatorInbox::Stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
}

}  // namespace lockstep::worker
