// SPDX-License-Identifier: Apache-2.0
// The next tokens of T5 1.0 and 1.1, given a source: t5 [FOLDER]. The model is in t5.hpp.
#include "t5.hpp"

#include <cstdio>
#include <exception>
#include <filesystem>
#include <vector>

#include "expected.hpp"
#include "stored.hpp"

namespace {

template <class Model> bool compare(const Model& model, const models::Expected& expected) {
  const auto target = expected.ids("decoder_ids");
  const models::Rows memory = model.encode(expected.ids("ids"));  // (Ls, E)
  const models::Rows logits = model.decode(target, memory);       // (Lt, V)
  models::print_next(target, logits, expected.rows("logits"));
  const bool encoder = expected.agrees(memory, "encoder_last_hidden_state");
  return expected.agrees(logits, "logits") && encoder;
}

}  // namespace

int main(int argc, char** argv) try {
  std::vector<std::filesystem::path> folders;
  if (argc > 1)
    folders = {argv[1]};
  else
    for (const char* name : {"t5", "t5_v1_1"}) folders.push_back(std::filesystem::path(MHA_MODELS_DATA) / name);

  bool right = true;
  for (const auto& folder : folders) {
    const models::Expected expected(folder);
    std::printf("%s\n", folder.string().c_str());
    const auto run = [&](const auto& weights) {
      // The activation is a type, so it is chosen here.
      return weights.config().activation == "relu" ? compare(models::T5<mha::Relu>(weights), expected)
                                                   : compare(models::T5<models::GatedGelu>(weights), expected);
    };
    right = models::with_stored<mha::T5>(mha::Checkpoint(folder), run) && right;
  }
  return right ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
