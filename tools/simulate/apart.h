// Runs a function in a process of its own.
#pragma once

#include <functional>
#include <string>

#include <sys/types.h>

namespace lockstep::simulate {

class Apart {
 public:
  // It begins at once, and SIGINT and SIGTERM end it. The result of `function`, and its output on
  // standard error, come back as text of at most kTextBytes.
  explicit Apart(const std::function<std::string()>& function);
  ~Apart();
  Apart(Apart&& other) noexcept;
  Apart& operator=(Apart&&) = delete;

  struct Ended {
    bool ok = false;   // it returned; false: it was killed, as by a failed check
    std::string text;  // its result, or its last words
  };
  // Waits for its end. Call it once.
  Ended Wait();
  void Kill();  // Wait still has to follow

  static constexpr std::size_t kTextBytes = 32 << 10;

 private:
  pid_t pid_ = -1;
  int out_ = -1;
};

}  // namespace lockstep::simulate
