// SPDX-License-Identifier: Apache-2.0
// What Hugging Face's model computed, expected.safetensors in the model's folder, and how far ours is from it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include <mha/io.hpp>

#include "rows.hpp"

namespace models {

/// Ours may be this far from theirs, relative to the largest number.
inline constexpr float tolerance = 1e-5f;

class Expected {
 public:
  explicit Expected(const std::filesystem::path& folder) : file_(folder / "expected.safetensors") {}

  std::vector<int> ids(const char* name) const {
    const auto stored = file_.view<std::int64_t, 1>(name);
    return {stored.data, stored.data + stored.extent[0]};
  }
  Eigen::Map<const Rows> rows(const char* name) const { return matrix(file_.view<float, 2>(name)); }
  mha::TensorView<const float, 3> pixels() const { return file_.view<float, 3>("pixels"); }

  /// The largest difference, relative to the largest number of theirs; a NaN of ours is a NaN.
  float difference(const Rows& ours, const char* name) const {
    const auto theirs = rows(name);
    if (ours.rows() != theirs.rows() || ours.cols() != theirs.cols())
      throw std::invalid_argument(std::string(name) + ": ours has " + std::to_string(ours.rows()) + " rows of " +
                                  std::to_string(ours.cols()) + ", Hugging Face's " + std::to_string(theirs.rows()) +
                                  " of " + std::to_string(theirs.cols()));
    return (ours - theirs).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() / theirs.cwiseAbs().maxCoeff();
  }

  /// Prints the difference and whether it is below the tolerance.
  bool agrees(const Rows& ours, const char* name) const {
    const float d = difference(ours, name);
    std::printf("  %-26s differs from Hugging Face's by %.1e of the largest   %s\n", name, double(d),
                d < tolerance ? "ok" : "WRONG");
    return d < tolerance;
  }

 private:
  mha::Safetensors file_;
};

/// A row for each of the first tokens: the likeliest next one, by our logits and by theirs.
inline void print_next(const std::vector<int>& ids, const Rows& ours, const Eigen::Map<const Rows>& theirs) {
  std::printf("  after token   ours: next, logit    Hugging Face: next, logit\n");
  for (Eigen::Index i = 0; i < ours.rows() && i < 4; ++i) {
    Eigen::Index a = 0, b = 0;
    const float logit = ours.row(i).maxCoeff(&a), other = theirs.row(i).maxCoeff(&b);
    std::printf("  %11d   %10ld  %9.5f    %12ld  %13.5f\n", ids[static_cast<std::size_t>(i)], long(a), double(logit),
                long(b), double(other));
  }
}

}  // namespace models
