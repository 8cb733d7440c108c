#include "transport/ucx/operation.h"

#include "transport/ucx/library.h"

namespace lockstep::transport::ucx {
namespace {

constexpr std::size_t kKeptBodyBytes = 16u << 10;

}  // namespace

Operation* OperationPool::Acquire(Operation::Kind kind, PeerId peer) {
  if (free_.empty()) {
    all_.emplace_back();
    all_.back().pool = weak_from_this();
    free_.push_back(&all_.back());
  }
  Operation* operation = free_.back();
  free_.pop_back();
  operation->kind = kind;
  operation->peer = peer;
  operation->status = UCS_INPROGRESS;
  return operation;
}

void OperationPool::Release(Operation* operation) {
  operation->body.clear();
  if (operation->body.capacity() > kKeptBodyBytes) operation->body.shrink_to_fit();
  operation->charged_bytes = 0;
  free_.push_back(operation);
}

void OperationPool::TakeEnded(std::vector<Operation*>& ended) {
  ended.clear();
  ended.swap(ended_);
}

void OperationPool::OnSendEnded(void* request, ucs_status_t status, void* user_data) {
  Ended(request, status, static_cast<Operation*>(user_data));
}

void OperationPool::OnReceiveEnded(void* request, ucs_status_t status, std::size_t /*length*/,
                                   void* user_data) {
  Ended(request, status, static_cast<Operation*>(user_data));
}

void OperationPool::Ended(void* request, ucs_status_t status, Operation* operation) {
  operation->status = status;
  if (const auto pool = operation->pool.lock()) pool->ended_.push_back(operation);
  ucp_request_free(request);
}

}  // namespace lockstep::transport::ucx
