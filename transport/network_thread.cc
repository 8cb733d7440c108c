#include "transport/network_thread.h"

#include <pthread.h>
#include <signal.h>

#include "base/check.h"

namespace lockstep::transport {

NetworkThread::NetworkThread(const char* name) : work_(io_.get_executor()) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { io_.run(); });
  pthread_setname_np(thread_.native_handle(), name);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

NetworkThread::~NetworkThread() {
  LOCKSTEP_CHECK(!running_in_this_thread(), "a network thread ends itself");
  io_.stop();
  thread_.join();
}

}  // namespace lockstep::transport
