// Makes one function for std::visit out of one lambda for each type of a variant. A type without a
// lambda is an error of the compiler.
#pragma once

namespace lockstep {

template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

}  // namespace lockstep
