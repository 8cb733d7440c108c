// A thread that runs an io_context. A worker has one for its connection to the coordinator. Where
// TCP reaches its peers, the same thread serves their connections: it carries out at once what it
// has read from the coordinator.
//
// Signals are for the threads of the program: all are blocked here.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <thread>

namespace lockstep::transport {

class NetworkThread {
 public:
  // Runs from here on. `name`: of the thread, at most 15 characters.
  explicit NetworkThread(const char* name);
  // Handlers that have not run are destroyed. Call it on another thread.
  ~NetworkThread();
  NetworkThread(const NetworkThread&) = delete;
  NetworkThread& operator=(const NetworkThread&) = delete;

  boost::asio::io_context& io() { return io_; }
  bool running_in_this_thread() const { return thread_.get_id() == std::this_thread::get_id(); }

 private:
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::thread thread_;
};

}  // namespace lockstep::transport
