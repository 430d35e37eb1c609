// SPDX-License-Identifier: Apache-2.0
// Linear, feed-forward and norm by loops in double.
#include "block_oracle.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace blocks {

namespace {

/// f(x), f′(x), and by how much f′ may change over a step of `error`.
struct Point {
  double value, slope, bend;
};

Point at(Form form, Function f, double x, double error) {
  if (form == Form::plain) return {x, 1, 0};
  const double root = std::sqrt(0.5), density = std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0));
  const double cdf = std::erfc(-x * root) / 2;
  const auto with_corner = [&](double below, double above) {
    return Point{x < 0 ? below * x : above * x, x > 0 ? above : below,
                 std::abs(x) <= error ? std::abs(above - below) : 0};
  };
  switch (f) {
    case Function::relu:
      return with_corner(0, 1);
    case Function::gelu:
      return {x * cdf, cdf + x * density, error};
    case Function::gelu_tanh: {
      const double c = std::sqrt(2 / std::acos(-1.0)), t = std::tanh(c * (x + 0.044715 * x * x * x));
      return {x * (1 + t) / 2, (1 + t) / 2 + x / 2 * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x), error};
    }
    case Function::silu: {
      const double s = 1 / (1 + std::exp(-x));
      return {x * s, s * (1 + x * (1 - s)), error};
    }
    case Function::bent:
      return with_corner(0.25, 1);
  }
  return {};
}

constexpr double steepest =
    1.2;  // no activation of ours is steeper, and none but those with a corner bends more than 1

/// x · w + b, stored where a machine stores it.
Numbers product(const Precision& p, const Numbers& x, const Numbers& w, const Numbers& b) {
  Numbers s(x.rows, w.columns);
  for (Index i = 0; i < s.rows; ++i)
    for (Index j = 0; j < s.columns; ++j) {
      double value = b.columns > 0 ? b(0, j) : 0, size = std::abs(value), error = 0;
      for (Index k = 0; k < x.columns; ++k) {
        const double term = x(i, k) * w(k, j);
        value += term;
        size += std::abs(term);
        error += x.error[x.at(i, k)] * std::abs(w(k, j));
      }
      s(i, j) = value;
      error += (size + error) * ((x.columns + 8) * p.sums + 2 * p.operand);
      s.error[s.at(i, j)] = error + p.stored(std::abs(value) + error);
    }
  return s;
}

/// xᵀ d, or dᵀ-less sums of rows where x has no columns.
void add_products(const Precision& p, const Numbers& x, const Numbers& d, Numbers& weight, Numbers& bias) {
  for (Index j = 0; j < d.columns; ++j) {
    double value = 0, size = 0, error = 0;
    for (Index i = 0; i < d.rows; ++i) {
      value += d(i, j);
      size += std::abs(d(i, j));
      error += d.error[d.at(i, j)];
    }
    if (bias.columns > 0) {
      bias(0, j) = value;
      bias.error[bias.at(0, j)] = error + size * 72 * p.sums;
    }
    for (Index e = 0; e < x.columns; ++e) {
      value = size = error = 0;
      for (Index i = 0; i < d.rows; ++i) {
        const double term = x(i, e) * d(i, j), of_x = x.error[x.at(i, e)], of_d = d.error[d.at(i, j)];
        value += term;
        size += std::abs(term);
        error += (std::abs(x(i, e)) + of_x) * of_d + of_x * std::abs(d(i, j));
      }
      weight(e, j) = value;
      weight.error[weight.at(e, j)] = error + (size + error) * ((d.rows + 8) * p.sums + 2 * p.operand_back);
    }
  }
}

}  // namespace

LinearAnswer linear(const Precision& p, Form form, Function f, const Numbers& x, const LinearNumbers& w,
                    const Numbers& added) {
  LinearAnswer a;
  a.sum = product(p, x, w.weight, w.bias);
  if (form == Form::gated) a.gate = product(p, x, w.gate, w.gate_bias);
  a.y = Numbers(x.rows, w.weight.columns);
  for (std::size_t i = 0; i < a.y.value.size(); ++i) {
    const double own = 16 * p.sums, s = a.sum.value[i], s_error = a.sum.error[i];
    double y = 0, error = 0;
    if (form == Form::gated) {
      const double g_error = a.gate.error[i], by = at(form, f, a.gate.value[i], g_error).value;
      y = by * s;
      error = std::abs(by) * (s_error + own * std::abs(s)) + (std::abs(s) + s_error) * steepest * g_error;
    } else {
      y = at(form, f, s, s_error).value;
      error = steepest * s_error + own * std::abs(y);
    }
    if (added.columns > 0) y += added.value[i];
    if (added.columns > 0) error += added.error[i];
    a.y.value[i] = y;
    a.y.error[i] = error + 4 * p.sums * (std::abs(y) + (added.columns > 0 ? std::abs(added.value[i]) : 0)) +
                   p.stored(std::abs(y) + error);
  }
  return a;
}

LinearGradients linear_backward(const Precision& p, Form form, Function f, const Numbers& x, const LinearNumbers& w,
                                const LinearAnswer& y, const Numbers& dy) {
  Numbers d(dy.rows, dy.columns), d_gate(form == Form::gated ? dy.rows : 0, dy.columns);
  for (std::size_t i = 0; i < d.value.size(); ++i) {
    const double by = dy.value[i], wrong = dy.error[i], size = std::abs(by) + wrong, own = 32 * p.sums;
    const double s = y.sum.value[i], s_error = y.sum.error[i];
    if (form == Form::gated) {
      const double g_error = y.gate.error[i];
      const Point g = at(form, f, y.gate.value[i], g_error);
      d.value[i] = by * g.value;
      d.error[i] = std::abs(g.value) * wrong + size * (steepest * g_error + own * std::abs(g.value));
      d_gate.value[i] = by * s * g.slope;
      d_gate.error[i] = std::abs(s * g.slope) * wrong +
                        size * (std::abs(g.slope) * s_error + (std::abs(s) + s_error) * (g.bend + 2 * own));
    } else {
      const Point at_sum = at(form, f, s, s_error);
      d.value[i] = by * at_sum.slope;
      d.error[i] = std::abs(at_sum.slope) * wrong + (form == Form::plain ? 0 : size * (at_sum.bend + own));
    }
  }
  LinearGradients g;
  g.weights = w;  // the sizes
  add_products(p, x, d, g.weights.weight, g.weights.bias);
  if (form == Form::gated) add_products(p, x, d_gate, g.weights.gate, g.weights.gate_bias);
  g.x = Numbers(x.rows, x.columns);
  for (Index i = 0; i < x.rows; ++i)
    for (Index e = 0; e < x.columns; ++e) {
      double value = 0, size = 0, error = 0;
      const auto add = [&](const Numbers& of, const Numbers& matrix) {
        for (Index j = 0; j < of.columns; ++j) {
          value += of(i, j) * matrix(e, j);
          size += std::abs(of(i, j) * matrix(e, j));
          error += of.error[of.at(i, j)] * std::abs(matrix(e, j));
        }
      };
      add(d, w.weight);
      if (form == Form::gated) add(d_gate, w.gate);
      error += (size + error) * ((2 * d.columns + 8) * p.sums + 2 * p.operand_back);
      g.x(i, e) = value;
      g.x.error[g.x.at(i, e)] = error + p.stored(std::abs(value) + error);
    }
  return g;
}

namespace {

/// A row's norm n with its error, and 1 / √(var + eps) with its relative one.
struct NormedRow {
  std::vector<double> n, error;
  double inverse = 0, inverse_error = 0;
};

NormedRow normed(const Precision& p, const NormNumbers& of, const Numbers& z, Index i) {
  const Index width = z.columns;
  double mean = 0, square = 0, largest = 0, apart = 0;
  for (Index j = 0; j < width && of.kind == NormKind::layer; ++j) mean += z(i, j) / width;
  for (Index j = 0; j < width; ++j) {
    const double d = z(i, j) - mean;
    square += d * d / width;
    largest = std::max(largest, std::abs(z(i, j)));
    apart = std::max(apart, std::abs(d));
  }
  NormedRow row;
  row.inverse = square + of.eps == 0 ? 0 : 1 / std::sqrt(square + of.eps);
  const double of_difference = p.sums * (6 * largest + (2 * width + 8) * apart);
  row.inverse_error = row.inverse * of_difference + (width + 16) * p.sums;
  for (Index j = 0; j < width; ++j) {
    const double n = (z(i, j) - mean) * row.inverse;
    row.n.push_back(n);
    row.error.push_back(row.inverse * of_difference + std::abs(n) * row.inverse_error);
  }
  return row;
}

}  // namespace

NormAnswer norm(const Precision& p, const NormNumbers& of, const Numbers& x, const Numbers& added) {
  NormAnswer a{Numbers(x.rows, x.columns), Numbers(x.rows, x.columns)};
  for (std::size_t i = 0; i < x.value.size(); ++i) {
    a.sum.value[i] = x.value[i] + (added.columns > 0 ? added.value[i] : 0);
    a.sum.error[i] = p.sums * std::abs(a.sum.value[i]) + p.stored(a.sum.value[i]);
  }
  for (Index i = 0; i < x.rows; ++i) {
    const NormedRow row = normed(p, of, a.sum, i);
    for (Index j = 0; j < x.columns; ++j) {
      const auto e = static_cast<std::size_t>(j);
      const double y = row.n[e] * of.weight[e] + of.bias[e];
      const double error = std::abs(of.weight[e]) * row.error[e] +
                           8 * p.sums * (std::abs(row.n[e] * of.weight[e]) + std::abs(of.bias[e]));
      a.y(i, j) = y;
      a.y.error[a.y.at(i, j)] = error + p.stored(std::abs(y) + error);
    }
  }
  return a;
}

NormGradients norm_backward(const Precision& p, const NormNumbers& of, const Numbers& z, const Numbers& dy) {
  const Index width = z.columns;
  NormGradients g{Numbers(z.rows, width), Numbers(1, width), Numbers(1, width)};
  for (Index i = 0; i < z.rows; ++i) {
    const NormedRow row = normed(p, of, z, i);
    double level = 0, along = 0, level_size = 0, along_size = 0, along_error = 0;
    for (Index j = 0; j < width; ++j) {
      const auto e = static_cast<std::size_t>(j);
      const double d = dy(i, j), by = d * of.weight[e];
      level += by / width;
      level_size += std::abs(by) / width;
      along += by * row.n[e] / width;
      along_size += std::abs(by * row.n[e]) / width;
      along_error += std::abs(by) * row.error[e] / width;
      g.weight(0, j) += d * row.n[e];
      g.weight.error[e] += std::abs(d) * row.error[e] + 72 * p.sums * std::abs(d * row.n[e]);
      g.bias(0, j) += d;
      g.bias.error[e] += 72 * p.sums * std::abs(d);
    }
    if (of.kind == NormKind::rms) level = level_size = 0;
    for (Index j = 0; j < width; ++j) {
      const auto e = static_cast<std::size_t>(j);
      const double by = dy(i, j) * of.weight[e], n = row.n[e], x = (by - level - n * along) * row.inverse;
      const double size = std::abs(by) + level_size + std::abs(n) * along_size;
      const double error =
          row.inverse * ((width + 16) * p.sums * size + row.error[e] * std::abs(along) + std::abs(n) * along_error) +
          std::abs(x) * row.inverse_error;
      g.x(i, j) = x;
      g.x.error[g.x.at(i, j)] = error + p.stored(std::abs(x) + error);
    }
  }
  return g;
}

}  // namespace blocks
