// SPDX-License-Identifier: Apache-2.0
// Semantic search: ranks the passages of text files against a question with a real sentence transformer.
//
// You learn     how a trained transformer runs on mha: weights borrowed from a mapped file, texts of different lengths
//               without padding, threads shared out or inside a call, float32 or a matrix unit by one type
// The maths     h ← LayerNorm(h + MHA(h)),  h ← LayerNorm(h + W₂ gelu(W₁ h)),  vector = mean of h over tokens, length 1
// Shapes        h (ΣL, E), the texts of a batch one after another   vectors (N, E)
// Read          encoder.cpp, then model.cpp (batches), checkpoint.cpp (files), wordpiece.cpp (text), app.cpp (options)
#include <iostream>

#include <unistd.h>

#include "app.hpp"

int main(int argc, char** argv) {
  return semantic_search::run(argc, argv, std::cout, std::cerr, ::isatty(STDERR_FILENO) == 1);
}
