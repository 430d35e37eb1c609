// SPDX-License-Identifier: Apache-2.0
// Generates text: GPT-2, LLaMA, Mistral, Qwen 2, Qwen 3, Phi-3 or Gemma continues a prompt, with a key/value cache.
//
// You learn     how a program reads a prompt in chunks and writes token by token, a step of the cache each, and chooses
//               the cache's storage and scalar when it starts
// The maths     token ~ softmax(logits / temperature), cut to the likeliest; logits of the last row of every step
// Shapes        ids (n), the tokens of a step   logits (V)
// Read          generation.cpp (the loop), language_model.cpp (the cache), sampler.cpp (the draw),
//               tokenizer.cpp (text), app.cpp (options); the models are in ../models
#include <iostream>

#include <unistd.h>

#include "app.hpp"

int main(int argc, char** argv) {
  return generate::run(argc, argv, std::cout, std::cerr, ::isatty(STDERR_FILENO) == 1);
}
