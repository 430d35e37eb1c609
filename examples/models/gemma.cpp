// SPDX-License-Identifier: Apache-2.0
// The next tokens of Gemma, Gemma 2 and Gemma 3's text model: gemma [FOLDER]. The model is in gemma.hpp.
#include "gemma.hpp"

#include <cstdio>
#include <exception>
#include <filesystem>
#include <vector>

#include "expected.hpp"
#include "stored.hpp"

int main(int argc, char** argv) try {
  std::vector<std::filesystem::path> folders;
  if (argc > 1)
    folders = {argv[1]};
  else
    for (const char* name : {"gemma", "gemma2", "gemma3"})
      folders.push_back(std::filesystem::path(MHA_MODELS_DATA) / name);

  bool right = true;
  for (const auto& folder : folders) {
    const models::Expected expected(folder);
    const auto ids = expected.ids("ids");
    const auto run = [&](const auto& weights) {
      const int length = static_cast<int>(ids.size());  // positions may depend on it
      return models::with_gemma(weights.config(),
                                [&]<class Model>() -> models::Rows { return Model(weights, length)(ids); });
    };
    const models::Rows logits = models::with_stored<mha::Gemma>(mha::Checkpoint(folder), run);  // (L, V)

    std::printf("%s\n", folder.string().c_str());
    models::print_next(ids, logits, expected.rows("logits"));
    right = expected.agrees(logits, "logits") && right;
  }
  return right ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
