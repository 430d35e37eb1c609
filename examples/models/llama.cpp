// SPDX-License-Identifier: Apache-2.0
// The next tokens of LLaMA, Mistral, Qwen 2, Qwen 3 and Phi-3: llama [FOLDER]. The model is in llama.hpp.
#include "llama.hpp"

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
    for (const char* name : {"llama", "mistral", "qwen2", "qwen3", "phi3"})
      folders.push_back(std::filesystem::path(MHA_MODELS_DATA) / name);

  bool right = true;
  for (const auto& folder : folders) {
    const models::Expected expected(folder);
    const auto ids = expected.ids("ids");
    const auto run = [&](const auto& weights) -> models::Rows {
      // The norm of queries and keys is a type, so the family is chosen here; all else is data of the model.
      const int length = static_cast<int>(ids.size());  // positions may depend on it
      return weights.config().qk_norm ? models::Llama<mha::QkNorm>(weights, length)(ids)
                                      : models::Llama<>(weights, length)(ids);
    };
    const models::Rows logits = models::with_stored<mha::Llama>(mha::Checkpoint(folder), run);  // (L, V)

    std::printf("%s\n", folder.string().c_str());
    models::print_next(ids, logits, expected.rows("logits"));
    right = expected.agrees(logits, "logits") && right;
  }
  return right ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
