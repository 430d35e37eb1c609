// SPDX-License-Identifier: Apache-2.0
// 15: bfloat16 on a systolic array
//
// You learn   to run a layer as a TPU would, by changing one type; how many digits that costs; and why head sizes are
//             often 64 or 128: an array works on whole tiles, and fills them up with zeros
// The maths   x ≈ bf16(x), |x − bf16(x)| ≤ 2⁻⁸|x|; a product of (M, K) by (K, N) takes ⌈M/R⌉·⌈N/C⌉·⌈K/d⌉ passes of an
//             R × C array of depth d, and fills M·N·K of the R·C·d multiply-adds of each
// Symbols     L = 256 tokens, E = 256, 4 heads; X, Y (L, E)  Q Kᵀ: (L, d_k) by (d_k, L)   P V: (L, L) by (L, d_k)
// Output      which matrix unit ran, and for AMX's tiles and a TPU's 128 × 128 array
//               d_k =  64: full to 100 % on AMX tiles, to  50 % on 128 x 128
//               d_k =  80: full to  91 % on AMX tiles, to  62 % on 128 x 128
//               d_k = 128: full to 100 % on AMX tiles, to 100 % on 128 x 128
// Next        16_cuda.cu, 17_your_own_threads.cpp
#include <cmath>
#include <cstdio>
#include <string>

#include <mha/systolic.hpp>

constexpr int L = 256, E = 256;
using Rows = mha::Tensor<float, 2>;

// Normal size, no pattern: the fractional part of a multiple of the golden ratio.
Rows numbers(int rows, int columns, double seed, double scale) {
  Rows x(rows, columns);
  for (int i = 0; i < rows * columns; ++i)
    x.data()[i] = float(scale * (2 * std::fmod(seed + 0.6180339887 * i, 1.0) - 1));
  return x;
}

double relative_error(const Rows& value, const Rows& expected) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(value.data()[i] - expected.data()[i], 2);
    size += std::pow(expected.data()[i], 2);
  }
  return std::sqrt(difference / size);
}

// The layer is written once: its second type says what computes it.
template <class Backend> Rows layer_output(const Rows& x) {
  mha::MultiHeadAttention<float, Backend, mha::Causal> layer({.d_model = E, .num_heads = 4});
  layer.initialize(mha::XavierUniform{.seed = 15});
  return layer(x);
}

// A dense product (L, E) by (E, E) with one, three or six bfloat16 products for one product of floats.
template <class Precision> double product_error(const Rows& x, const Rows& w) {
  Rows y(L, E), exact(L, E);
  mha::Workspace workspace;
  mha::Systolic<mha::AmxArray, Precision>{}.gemm(mha::GemmCall<float>{x.view(), w.view(), {}, y.view()}, workspace);
  for (int i = 0; i < L; ++i)
    for (int j = 0; j < E; ++j) {
      double sum = 0;
      for (int k = 0; k < E; ++k) sum += double(x(i, k)) * w(k, j);
      exact(i, j) = float(sum);
    }
  return relative_error(y, exact);
}

// How full both products of attention leave an array: counted while they run.
template <class Array> double filled(int d_k) {
  const Rows q = numbers(L, d_k, 0.1, 1), k = numbers(L, d_k, 0.2, 1), p = numbers(L, L, 0.3, 1),
             v = numbers(L, d_k, 0.4, 1);
  Rows s(L, L), o(L, d_k);
  mha::Workspace workspace;
  const mha::Systolic<Array> backend;
  const mha::ArrayMeter meter;
  backend.gemm(mha::GemmCall<float>{q.view(), mha::transposed(k.view()), {}, s.view()}, workspace);
  backend.gemm(mha::GemmCall<float>{p.view(), v.view(), {}, o.view()}, workspace);
  // By hand: passes of whole tiles along each axis, times the size of the array.
  const auto up = [](int n, int side) { return double((n + side - 1) / side * side); };
  const double issued = up(L, Array::rows) *
                        (up(L, Array::columns) * up(d_k, Array::depth) + up(d_k, Array::columns) * up(L, Array::depth));
  return double(meter.use().issued) == issued ? meter.use().utilisation() : NAN;
}

int main() {
  const char* const unit = to_string(mha::current_unit());
  const std::string& no_amx = mha::missing(mha::MatrixUnit::amx);
  std::printf("matrix unit: %s%s%s\n", unit, no_amx.empty() ? "" : ", because ", no_amx.c_str());
  bool holds = true;

  const Rows x = numbers(L, E, 0.5, 1), w = numbers(E, E, 0.7, 0.1);
  const Rows in_float = layer_output<mha::Cpu>(x), in_tiles = layer_output<mha::Systolic<>>(x);
  const double layer_error = relative_error(in_tiles, in_float);
  std::printf("layer:   Systolic differs from Cpu in float by %.1e\n", layer_error);
  holds = holds && layer_error > 0 && layer_error < 2e-2;

  const double one = product_error<mha::DefaultPrecision>(x, w), three = product_error<mha::HighPrecision>(x, w),
               six = product_error<mha::HighestPrecision>(x, w);
  std::printf("product: default %.1e, high %.1e, highest %.1e\n", one, three, six);
  holds = holds && one < 1e-2 && three < 2e-5 && six < 1e-6;

  for (const int d_k : {64, 80, 128}) {
    const double amx = filled<mha::AmxArray>(d_k), tpu = filled<mha::TpuArray<128>>(d_k);
    std::printf("d_k = %3d: full to %3.0f %% on AMX tiles, to %3.0f %% on 128 x 128\n", d_k, 100 * amx, 100 * tpu);
    // AMX's tiles are 32 deep but 16 wide, so that 80 pads Q Kᵀ alone; on 128 x 128 both products are padded alike.
    holds = holds && tpu == d_k / 128.0 && (d_k == 80 ? amx < 1 && amx > tpu : amx == 1);
  }
  std::printf("only d_k = 128 fills a TPU's array: %s\n", holds ? "yes" : "NO");
  return holds ? 0 : 1;
}
