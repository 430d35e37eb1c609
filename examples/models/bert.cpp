// SPDX-License-Identifier: Apache-2.0
// What BERT makes of two texts of different lengths: bert [FOLDER]. The model is in bert.hpp.
#include "bert.hpp"

#include <cstdio>
#include <exception>
#include <filesystem>
#include <vector>

#include "expected.hpp"
#include "stored.hpp"

int main(int argc, char** argv) try {
  const std::filesystem::path folder = argc > 1 ? argv[1] : MHA_MODELS_DATA "/bert";
  const auto model =
      models::with_stored<mha::Bert>(mha::Checkpoint(folder), [](const auto& w) { return models::Bert<>(w); });
  const models::Expected expected(folder);

  // The texts one after another; Hugging Face padded the shorter one.
  std::vector<int> offsets{0};
  for (const int length : expected.ids("lengths")) offsets.push_back(offsets.back() + length);
  const models::Rows x = model(expected.ids("ids"), expected.ids("token_types"), offsets);  // (ΣL, E)
  const models::Rows pooled = model.pool(x, offsets);                                       // (texts, E)

  std::printf("%s\n", folder.string().c_str());
  const auto theirs = expected.rows("pooler_output");
  for (Eigen::Index t = 0; t < pooled.rows(); ++t)
    std::printf("  text %ld, pooled:    ours %9.6f %9.6f ...    Hugging Face's %9.6f %9.6f ...\n", long(t),
                double(pooled(t, 0)), double(pooled(t, 1)), double(theirs(t, 0)), double(theirs(t, 1)));
  const bool hidden = expected.agrees(x, "last_hidden_state");
  return expected.agrees(pooled, "pooler_output") && hidden ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
