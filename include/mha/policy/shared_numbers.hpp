// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "../config.hpp"

namespace mha::inline MHA_NAMESPACE::detail {

/// The numbers of a policy. Copies share them until one is written: it then has memory of its own. What writable() gave
/// is good until the next copy is made. One that was moved from has no numbers.
class SharedNumbers {
 public:
  explicit SharedNumbers(std::vector<float> numbers)
      : numbers_(std::make_shared<std::vector<float>>(std::move(numbers))) {}

  const std::vector<float>& get() const {
    static const std::vector<float> none;
    return numbers_ != nullptr ? *numbers_ : none;
  }

  /// The numbers to write.
  std::span<float> writable() {
    if (numbers_ == nullptr) return {};
    if (numbers_.use_count() > 1) numbers_ = std::make_shared<std::vector<float>>(*numbers_);
    std::atomic_thread_fence(std::memory_order_acquire);  // after the last reads of a copy that is gone
    return *numbers_;
  }

 private:
  std::shared_ptr<std::vector<float>> numbers_;
};

}  // namespace mha::inline MHA_NAMESPACE::detail
