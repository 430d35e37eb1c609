// SPDX-License-Identifier: Apache-2.0
// 30: attention as Eigen expressions
//
// You learn   the backend EigenCpu: a layer as on any other backend, at the speed of your own flags (-march=native);
//             long double; its backward pass; where its formulas stand: include/mha/backend/eigen/attend.hpp and
//             backward.hpp
// The maths   for each block of keys: S = Q Kᵀ/√D, m′ = max(m, S), P = exp(S − m′), l ← l·exp(m − m′) + ΣP,
//             O ← O·exp(m − m′) + P V; at the end O/l. No matrix of L × L numbers. Backward: P = exp(S − m)/l again,
//             dV = Pᵀ dO, dS = P ∘ (dO Vᵀ − rowsum(dO ∘ O)), dQ = dS K/√D, dK = dSᵀ Q/√D
// Symbols     L = 300 tokens, E = 32 numbers each, H = 4 heads of D = 8; X, Y (L, E)
// Output      four lines that end in "yes"
// Next        31_porting.cpp
#include <cmath>
#include <cstdio>
#include <Eigen/Core>
#include <limits>

#include <mha/eigen.hpp>
#include <mha/mha.hpp>

constexpr int L = 300, E = 32, H = 4, D = E / H;

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}

template <class Scalar> using Rows = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// The formula without blocks: all L × L logits of one head at once.
template <class Scalar> Rows<Scalar> materialised(const Rows<Scalar>& q, const Rows<Scalar>& k, const Rows<Scalar>& v) {
  Rows<Scalar> p = q * k.transpose() / std::sqrt(Scalar(D));  // (L, L)
  p = (p.colwise() - p.rowwise().maxCoeff()).array().exp();
  return (p.array().colwise() / p.rowwise().sum().array()).matrix() * v;  // (L, D)
}

int main() {
  Rows<float> x(L, E);
  for (int i = 0; i < L; ++i)
    for (int e = 0; e < E; ++e) x(i, e) = std::sin(0.1f * float(i + 1) * float(e));

  // The backend is one word of the layer's type. Both layers read the same weights.
  mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> cpu({.d_model = E, .num_heads = H});
  mha::MultiHeadAttention<float, mha::EigenCpu, mha::Causal> eigen({.d_model = E, .num_heads = H});
  cpu.initialize(mha::XavierUniform{.seed = 1});
  eigen.borrow(cpu);
  const Rows<float> y = eigen(x);  // (L, E)
  check("a layer on EigenCpu computes what one on Cpu does", (y - Rows<float>(cpu(x))).norm() < 1e-5f * y.norm());

  // Attention in long double, for which Cpu has no kernels.
  const Rows<long double> q = x.leftCols(D).cast<long double>(), k = x.middleCols(D, D).cast<long double>(),
                          v = x.rightCols(D).cast<long double>();
  const auto head = [](const Rows<long double>& m) { return mha::view(m.data(), L, 1, D); };  // (L, 1 head, D)
  Rows<long double> o(L, D);
  mha::attention_into<mha::EigenCpu>(mha::view(o.data(), L, 1, D), head(q), head(k), head(v));
  const auto precision = 100 * std::numeric_limits<long double>::epsilon();  // on x86-64 a twentieth of double's
  check("long double is computed in its own precision", (o - materialised(q, k, v)).norm() < precision * o.norm());

  // Training too: the gradients of ½‖Y‖² with respect to the layer's weights are the same on both.
  const auto gradients = [&](const auto& layer) {
    auto tape = layer.tape();
    auto of_weights = layer.gradients();
    const Rows<float> d_y = layer(x, tape);
    layer.backward(d_y, tape, of_weights);
    return Eigen::VectorXf(Eigen::VectorXf::Map(of_weights.flat().data(), Eigen::Index(of_weights.flat().size())));
  };
  const Eigen::VectorXf g = gradients(eigen);
  check("its gradients are those of Cpu", (g - gradients(cpu)).norm() < 1e-5f * g.norm());

  // Threads change no bit, as on Cpu.
  mha::MultiHeadAttention<float, mha::EigenCpuWith<mha::Serial>, mha::Causal> alone({.d_model = E, .num_heads = H});
  alone.borrow(cpu);
  check("one thread gives the bits of many", Rows<float>(alone(x)) == y);
  return failures == 0 ? 0 : 1;
}
