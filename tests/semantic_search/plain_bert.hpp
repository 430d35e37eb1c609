// SPDX-License-Identifier: Apache-2.0
// The encoder once more, in double and in loops, from the tensors of a tiny model: an oracle that needs no download.
#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "tiny_model.hpp"

namespace tiny {

using Rows = std::vector<std::vector<double>>;  // (L, width)

inline double at(const Model& m, const std::string& name, int row, int column) {
  const Tensor& t = m.tensors.at(name);
  return t.values[static_cast<std::size_t>(t.shape.size() == 2 ? row * t.shape[1] + column : column)];
}

inline Rows dense(const Model& m, const std::string& name, const Rows& x) {
  const auto& shape = m.tensors.at(name + ".weight").shape;
  Rows y(x.size(), std::vector<double>(static_cast<std::size_t>(shape[0])));
  for (std::size_t l = 0; l < x.size(); ++l)
    for (int o = 0; o < shape[0]; ++o) {
      double sum = at(m, name + ".bias", 0, o);
      for (int i = 0; i < shape[1]; ++i) sum += at(m, name + ".weight", o, i) * x[l][static_cast<std::size_t>(i)];
      y[l][static_cast<std::size_t>(o)] = sum;
    }
  return y;
}

inline Rows norm(const Model& m, const std::string& name, Rows x, const Rows& residual) {
  for (std::size_t l = 0; l < x.size(); ++l) {
    double mean = 0, variance = 0;
    for (std::size_t e = 0; e < x[l].size(); ++e) mean += (x[l][e] += residual[l][e]) / kHidden;
    for (const double v : x[l]) variance += (v - mean) * (v - mean) / kHidden;
    for (std::size_t e = 0; e < x[l].size(); ++e)
      x[l][e] = (x[l][e] - mean) / std::sqrt(variance + 1e-12) * at(m, name + ".weight", 0, static_cast<int>(e)) +
                at(m, name + ".bias", 0, static_cast<int>(e));
  }
  return x;
}

/// The softmax of one head, row by row.
inline Rows probabilities(const Rows& q, const Rows& k, int head) {
  constexpr int width = kHidden / kHeads;
  Rows p(q.size(), std::vector<double>(k.size()));
  for (std::size_t i = 0; i < q.size(); ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < k.size(); ++j) {
      double dot = 0;
      for (int d = head * width; d < (head + 1) * width; ++d)
        dot += q[i][static_cast<std::size_t>(d)] * k[j][static_cast<std::size_t>(d)];
      sum += p[i][j] = std::exp(dot / std::sqrt(static_cast<double>(width)));
    }
    for (double& v : p[i]) v /= sum;
  }
  return p;
}

/// Hidden states before layer `layers`; the mean-pooled, normalised vector is pooled(hidden(m, ids, kLayers)).
inline Rows hidden(const Model& m, const std::vector<int>& ids, int layers) {
  const Rows zero(ids.size(), std::vector<double>(kHidden));
  Rows x = zero;
  for (int l = 0; l < static_cast<int>(ids.size()); ++l)
    for (int e = 0; e < kHidden; ++e)
      x[static_cast<std::size_t>(l)][static_cast<std::size_t>(e)] =
          at(m, "embeddings.word_embeddings.weight", ids[static_cast<std::size_t>(l)], e) +
          at(m, "embeddings.position_embeddings.weight", l, e) + at(m, "embeddings.token_type_embeddings.weight", 0, e);
  x = norm(m, "embeddings.LayerNorm", x, zero);
  for (int i = 0; i < layers; ++i) {
    const std::string layer = "encoder.layer." + std::to_string(i) + ".";
    const Rows q = dense(m, layer + "attention.self.query", x), k = dense(m, layer + "attention.self.key", x),
               v = dense(m, layer + "attention.self.value", x);
    Rows heads = zero;
    for (int e = 0; e < kHidden; ++e) {
      const Rows p = probabilities(q, k, e / (kHidden / kHeads));
      for (std::size_t a = 0; a < x.size(); ++a)
        for (std::size_t b = 0; b < x.size(); ++b)
          heads[a][static_cast<std::size_t>(e)] += p[a][b] * v[b][static_cast<std::size_t>(e)];
    }
    x = norm(m, layer + "attention.output.LayerNorm", dense(m, layer + "attention.output.dense", heads), x);
    Rows wide = dense(m, layer + "intermediate.dense", x);
    for (auto& row : wide)
      for (double& w : row) w = w / 2 * std::erfc(-w / std::sqrt(2.0));
    x = norm(m, layer + "output.LayerNorm", dense(m, layer + "output.dense", wide), x);
  }
  return x;
}

inline std::vector<double> pooled(const Rows& x) {
  std::vector<double> mean(kHidden);
  double square = 0;
  for (const auto& row : x)
    for (std::size_t e = 0; e < mean.size(); ++e) mean[e] += row[e];
  for (const double v : mean) square += v * v;
  for (double& v : mean) v /= std::sqrt(square);
  return mean;
}

}  // namespace tiny
