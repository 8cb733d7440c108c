// A value that everybody reads, as field(), and that one class writes. The compiler refuses all
// others.
#pragma once

#include <utility>

namespace lockstep::coordinator {

template <class T, class Owner>
class Owned {
 public:
  template <class... Args>
  explicit Owned(Args&&... args) : value_(std::forward<Args>(args)...) {}
  const T& operator()() const { return value_; }

 private:
  friend Owner;
  friend struct OwnedInTests;  // a test of one part stands in for the others
  T& Write() { return value_; }

  T value_;
};

}  // namespace lockstep::coordinator
