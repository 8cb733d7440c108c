// The tensors of a job's model.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "base/messages.h"

namespace lockstep::coordinator {

// Copies share the elements: each round makes a state that has them, and a model may have hundreds.
class TensorList {
 public:
  using const_iterator = std::vector<TensorInfo>::const_iterator;

  TensorList() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): it stands in the place of a vector
  TensorList(std::vector<TensorInfo> tensors)
      : tensors_(std::make_shared<const std::vector<TensorInfo>>(std::move(tensors))) {}
  TensorList(std::initializer_list<TensorInfo> tensors)
      : TensorList(std::vector<TensorInfo>(tensors)) {}

  // NOLINTNEXTLINE(google-explicit-constructor)
  operator const std::vector<TensorInfo>&() const { return All(); }
  std::size_t size() const { return All().size(); }
  const TensorInfo& operator[](std::size_t index) const { return All()[index]; }
  const_iterator begin() const { return All().begin(); }
  const_iterator end() const { return All().end(); }
  friend bool operator==(const TensorList& a, const TensorList& b) {
    return a.tensors_ == b.tensors_ || a.All() == b.All();
  }

 private:
  const std::vector<TensorInfo>& All() const {
    static const std::vector<TensorInfo> kNone;
    return tensors_ != nullptr ? *tensors_ : kNone;
  }

  std::shared_ptr<const std::vector<TensorInfo>> tensors_;
};

}  // namespace lockstep::coordinator
