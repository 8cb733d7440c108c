// Expected failures are values: Result<T> holds a T or an Error, Status holds nothing or an Error.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace lockstep {

enum class ErrorCode {
  kInvalid,      // bad input of a user or malformed bytes; programs end with status 2
  kNotFound,     // a file, key or peer that is not there
  kUnavailable,  // cannot be done on this machine or now: a port in use, a library that does not
                 // start
  kRefused,      // the other side refused: wrong secret, wrong version, a piece that is gone
  kTimeout,      // a bounded wait ran out
  kClosed,       // the connection or the job has ended
  kTryAgain,     // the other side asked to try later
  kIo,           // the operating system reported: disk full, permission
};

struct Error {
  ErrorCode code = ErrorCode::kInvalid;
  std::string
      message;  // one line, no trailing full stop; names the file, key or address it is about
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value)
      : value_(std::in_place_index<0>, std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Error error)
      : value_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    LOCKSTEP_CHECK(ok(), "value() of an error: {}", std::get<1>(value_).message);
    return std::get<0>(value_);
  }
  const T& value() const& {
    LOCKSTEP_CHECK(ok(), "value() of an error: {}", std::get<1>(value_).message);
    return std::get<0>(value_);
  }
  T&& value() && {
    LOCKSTEP_CHECK(ok(), "value() of an error: {}", std::get<1>(value_).message);
    return std::move(std::get<0>(value_));
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }

  const Error& error() const {
    LOCKSTEP_CHECK(!ok(), "error() of a value");
    return std::get<1>(value_);
  }

 private:
  std::variant<T, Error> value_;
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error)
      : failed_(true), error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return !failed_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    LOCKSTEP_CHECK(failed_, "error() of a success");
    return error_;
  }

 private:
  bool failed_ = false;
  Error error_;
};

}  // namespace lockstep
