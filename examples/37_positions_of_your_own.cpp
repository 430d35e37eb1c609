// SPDX-License-Identifier: Apache-2.0
// 37: positions of your own
//
// You learn   a position policy of your own, here rotary positions in two dimensions for the patches of an image; how
//             to train with it, and to call it on some of the patches
// The maths   patch p stands at (p / W, p mod W). The first half of a head's coordinates turns by the row, the other by
//             the column: pair i of n by 100^(−i/n) per patch, as in Rotary; so q·k depends on both distances alone.
//             A turn is undone by its transpose, which is what a gradient goes back through
// Symbols     W = 6 patches in each of 5 rows, L = 30 patches of E = 32 numbers, H = 2 heads of D = 16: X, Y (L, E)
// Output      lines that end in "yes"
// Next        38_memories_of_a_batch.cpp
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <Eigen/Core>
#include <random>
#include <vector>

#include <mha/mha.hpp>

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
constexpr int W = 6, L = 5 * W, E = 32;

// apply() changes rows (B, L, H, D) in place, row l of sequence b being at position first[b] + l. apply_back()
// turns the gradient of the result into that of apply()'s input: only training needs it.
struct Rotary2d {
  static constexpr mha::Role role = mha::Role::position;
  int width;
  template <class T> void apply(const mha::TensorView<T, 4>& x, const mha::Origins& first) const { turn(x, first, 1); }
  template <class T> void apply_back(const mha::TensorView<T, 4>& gradient, const mha::Origins& first) const {
    turn(gradient, first, -1);
  }

 private:
  template <class T> void turn(const mha::TensorView<T, 4>& x, const mha::Origins& first, double direction) const {
    const int half = x.extent[3] / 2, n = half / 2;
    for (int b = 0; b < x.extent[0]; ++b)
      for (int l = 0; l < x.extent[1]; ++l)
        for (int i = 0; i < half; ++i) {  // n pairs that turn by the row, n by the column
          const int p = first[b] + l, at = i < n ? p / width : p % width, d = i < n ? i : half + i - n;
          const double angle = direction * at * std::pow(100.0, -double(i % n) / n);
          const T c = T(std::cos(angle)), s = T(std::sin(angle));
          for (int h = 0; h < x.extent[2]; ++h) {
            const T u = x(b, l, h, d), v = x(b, l, h, d + n);
            x(b, l, h, d) = u * c - v * s, x(b, l, h, d + n) = u * s + v * c;
          }
        }
  }
};

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-72s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}
bool near(const Matrix& a, const Matrix& b) { return (a - b).cwiseAbs().maxCoeff<Eigen::PropagateNaN>() < 1e-10; }

int main() {
  using Layer = mha::MultiHeadAttention<double, mha::Cpu, Rotary2d>;
  Layer layer({.d_model = E, .num_heads = 2}, Rotary2d{.width = W});
  layer.initialize(mha::XavierUniform{.seed = 1});
  Matrix x(L, E);
  for (int i = 0; i < L; ++i)
    for (int e = 0; e < E; ++e) x(i, e) = std::sin(0.7 * (i + 1) * (e + 2));
  const Matrix y = layer(x);

  // All patches a row further down: nothing changes. The same patches in other places: it does.
  std::vector<int> moved(L), order(L);
  for (int p = 0; p < L; ++p) moved[std::size_t(p)] = order[std::size_t(p)] = p + W;
  check("a row further down: the same result", near(layer(x, mha::Positions{moved}), y));
  std::shuffle(order.begin(), order.end(), std::mt19937(2));
  check("other places: another result", !near(layer(x, mha::Positions{order}), y));

  // A masked autoencoder gives the layer a part of the patches: Positions says which.
  const std::vector<int> seen{3, 4, 8, 14, 15, 16, 21, 29};
  const Matrix part = x(seen, Eigen::all);
  std::vector<std::uint8_t> shown(L);
  for (const int p : seen) shown[std::size_t(p)] = 1;
  const Matrix whole = layer(x, mha::mask([&](int, int, int, int k) { return shown[std::size_t(k)] != 0; }));
  check("a part of the patches is all of them with the others hidden",
        near(layer(part, mha::Positions{seen}), whole(seen, Eigen::all)));

  // It is trained so too: the gradient of a weight beside the slope of the loss.
  auto tape = layer.tape();
  auto gradients = layer.gradients();
  const auto loss = [&] { return 0.5 * layer(part, mha::Positions{seen}).squaredNorm(); };
  const Matrix z = layer(part, tape, mha::Positions{seen});
  static_cast<void>(layer.backward(z, tape, gradients));
  const auto move = [&](double by) { layer.update([&](auto& p) { p.query.matrix()(3, 2) += by; }); };
  constexpr double h = 1e-5;
  move(h);
  const double up = loss();
  move(-2 * h);
  const double slope = (up - loss()) / (2 * h);
  check("dL/dW_Q(3, 2) is the slope of the loss", std::abs(slope - gradients.query.matrix()(3, 2)) < 1e-6);
  return failures == 0 ? 0 : 1;
}
