// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "../../core/check.hpp"
#include "../../core/view.hpp"
#include "../backend.hpp"
#include "device_memory.hpp"

namespace mha::inline MHA_NAMESPACE::cuda {

/// Matrices of a layer on the device: those of one depth side by side in every row, so that neighbours can be one
/// product. Biases lie in a row of their own, 0 where a matrix of the group has none.
template <class T> class PackedWeights {
 public:
  /// On the current device.
  explicit PackedWeights(std::span<const DenseWeights<T>> parts) : device_(current_device()) {
    for (const DenseWeights<T>& w : parts) {
      const Index depth = w.matrix.extent[0];
      auto group = std::find_if(groups_.begin(), groups_.end(), [&](const Group& g) { return g.depth == depth; });
      if (group == groups_.end()) group = groups_.insert(group, Group{depth, 0, false, {}, {}});
      parts_.push_back({static_cast<std::size_t>(group - groups_.begin()), group->columns, w.matrix.extent[1]});
      group->columns += w.matrix.extent[1];
      group->has_bias = group->has_bias || w.bias.data != nullptr;
    }
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      Group& group = groups_[g];
      std::vector<T> rows(static_cast<std::size_t>(group.depth) * static_cast<std::size_t>(group.columns));
      std::vector<T> bias(group.has_bias ? static_cast<std::size_t>(group.columns) : 0);
      for (std::size_t p = 0; p < parts.size(); ++p)
        if (parts_[p].group == g) copy(parts[p], parts_[p], view(rows.data(), group.depth, group.columns), bias.data());
      group.matrix = DeviceArray<T>(std::span<const T>(rows));
      group.bias = DeviceArray<T>(std::span<const T>(bias));
    }
  }

  /// Errors    ShapeError if they are not on the current device
  void require_here() const {
    const int here = current_device();
    mha::detail::require(device_ == here, "Cuda: the weights were packed on device ", device_,
                         ", but the call computes on device ", here);
  }
  std::size_t bytes() const {
    std::size_t n = 0;
    for (const Group& g : groups_) n += (g.matrix.size() + g.bias.size()) * sizeof(T);
    return n;
  }

  /// Parts [first, last) as one matrix with its bias: they have one depth and lie side by side.
  DenseWeights<T> columns(std::size_t first, std::size_t last) const {
    const Part& part = parts_[first];
    const Group& group = groups_[part.group];
    Index count = 0;
    for (std::size_t p = first; p < last; ++p) count += parts_[p].columns;
    DenseWeights<T> w;
    w.matrix = {group.matrix.data() + part.first_column, {group.depth, count}, {group.columns, 1}};
    if (group.has_bias) w.bias = {group.bias.data() + part.first_column, {count}, {1}};
    return w;
  }
  bool neighbours(std::size_t a, std::size_t b) const {
    return parts_[a].group == parts_[b].group && parts_[a].first_column + parts_[a].columns == parts_[b].first_column;
  }

 private:
  struct Group {
    Index depth, columns;
    bool has_bias;
    DeviceArray<T> matrix, bias;
  };
  struct Part {
    std::size_t group;
    Index first_column, columns;
  };

  static void copy(const DenseWeights<T>& from, const Part& part, const TensorView<T, 2>& to, T* bias) {
    for (Index i = 0; i < from.matrix.extent[0]; ++i)
      for (Index j = 0; j < from.matrix.extent[1]; ++j) to(i, part.first_column + j) = from.matrix(i, j);
    for (Index j = 0; j < from.bias.extent[0]; ++j) bias[part.first_column + j] = from.bias(j);
  }

  int device_;
  std::vector<Group> groups_;
  std::vector<Part> parts_;
};

}  // namespace mha::inline MHA_NAMESPACE::cuda
