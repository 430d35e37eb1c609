// SPDX-License-Identifier: Apache-2.0
// Trains a language model of 200,000 parameters on a book, character by character, in about a minute.
//
// You learn     how a whole model is trained with the layers' backward passes: tapes, gradients, a loss, an optimiser
// The maths     loss = −mean log softmax(logits)[next character];  w ← AdamW(w, dloss/dw)
// Shapes        ids (B, L)   x (B, L, E)   logits (B, L, V);  B = 8, L = 128, E = 64, V = 256: characters are bytes
// Read          model.hpp (forward and backward), loss.hpp, adamw.hpp, training.cpp (the loop),
//               checkpoint.cpp (the file that ../generate runs), report.cpp (the page), app.cpp (options)
#include <iostream>

#include <unistd.h>

#include "app.hpp"

int main(int argc, char** argv) { return train::run(argc, argv, std::cout, std::cerr, ::isatty(STDERR_FILENO) == 1); }
