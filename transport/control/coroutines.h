// Asio's coroutines, with the header that they use without including it. Internal.
#pragma once

#include <utility>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>

namespace lockstep::transport::control {

// For co_spawn: our coroutines throw only for bugs and lack of memory.
inline void RethrowFromCoroutine(const std::exception_ptr& thrown) {
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace lockstep::transport::control
