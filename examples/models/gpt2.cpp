// SPDX-License-Identifier: Apache-2.0
// GPT-2's next tokens: gpt2 [FOLDER]. The model is in gpt2.hpp.
#include "gpt2.hpp"

#include <cstdio>
#include <exception>
#include <filesystem>

#include "expected.hpp"
#include "stored.hpp"

int main(int argc, char** argv) try {
  const std::filesystem::path folder = argc > 1 ? argv[1] : MHA_MODELS_DATA "/gpt2";
  const auto model =
      models::with_stored<mha::Gpt2>(mha::Checkpoint(folder), [](const auto& w) { return models::Gpt2<>(w); });
  const models::Expected expected(folder);

  const auto ids = expected.ids("ids");
  const models::Rows logits = model(ids);  // (L, V)

  std::printf("%s\n", folder.string().c_str());
  models::print_next(ids, logits, expected.rows("logits"));
  return expected.agrees(logits, "logits") ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
