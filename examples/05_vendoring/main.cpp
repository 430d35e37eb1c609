// SPDX-License-Identifier: Apache-2.0
// A program outside of mha: batched cross-attention from 3 questions to 2 documents of unequal length.
//
// The maths   Q = X W_Q,  K = M W_K,  V = M W_V;  keys beyond a document's length are hidden
// Symbols     B = 2, Lq = 3, Lk = 5, E = 32; X (B, Lq, E)  M (B, Lk, E)  Y (B, Lq, E)
// Output      1 line: a document padded to 5 rows gives the result of the document alone
#include <cmath>
#include <cstdio>
#include <vector>

#include <mha/mha.hpp>

int main() {
  mha::MultiHeadAttention<float> cross({.d_model = 32, .num_heads = 4});  // MultiHead, Full, Cpu by default
  cross.initialize(mha::XavierUniform{.seed = 7});

  mha::Tensor<float, 3> questions(2, 3, 32), documents(2, 5, 32);  // (B, Lq, E) (B, Lk, E)
  for (int i = 0; i < 2 * 3 * 32; ++i) questions.data()[i] = std::sin(0.3f * float(i));
  for (int i = 0; i < 2 * 5 * 32; ++i) documents.data()[i] = std::cos(0.5f * float(i));
  const std::vector<int> lengths{5, 2};
  const auto y = cross(questions, documents, mha::Padding{lengths});  // (B, Lq, E)

  // The same without padding: sequence 1 alone, its two rows only.
  const auto alone = cross(mha::view(&questions(1, 0, 0), 1, 3, 32), mha::view(&documents(1, 0, 0), 1, 2, 32));
  float worst = 0;
  for (int i = 0; i < 3; ++i)
    for (int e = 0; e < 32; ++e) {
      const float difference = std::fabs(y(1, i, e) - alone(0, i, e));
      worst = std::isnan(difference) ? INFINITY : std::fmax(worst, difference);
    }
  std::printf("padded and alone differ by %.0e\n", double(worst));
  return worst < 1e-6f ? 0 : 1;
}
