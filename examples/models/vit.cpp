// SPDX-License-Identifier: Apache-2.0
// What ViT sees in an image: vit [FOLDER]. The model is in vit.hpp.
#include "vit.hpp"

#include <cstdio>
#include <exception>
#include <filesystem>

#include "expected.hpp"
#include "stored.hpp"

int main(int argc, char** argv) try {
  const std::filesystem::path folder = argc > 1 ? argv[1] : MHA_MODELS_DATA "/vit";
  const auto model =
      models::with_stored<mha::Vit>(mha::Checkpoint(folder), [](const auto& w) { return models::Vit<>(w); });
  const models::Expected expected(folder);

  const models::Rows logits = model(expected.pixels());  // (1, classes)

  std::printf("%s\n  class    ours      Hugging Face's\n", folder.string().c_str());
  const auto theirs = expected.rows("logits");
  for (Eigen::Index c = 0; c < logits.cols(); ++c)
    std::printf("  %5ld %9.6f  %9.6f\n", long(c), double(logits(0, c)), double(theirs(0, c)));
  return expected.agrees(logits, "logits") ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
