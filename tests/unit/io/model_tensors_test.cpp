// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include <mha/io/model_tensors.hpp>

#include "checkpoint_checks.hpp"
#include "failing_new.hpp"
#include "replaced_new.hpp"

namespace {

using mha_test::message_of;
template <class T> using Tensors = mha::detail::ModelTensors<T>;

template <class T> struct Folder : mha_test::ModelFolder<T> {
  Folder() {
    this->config = nlohmann::json::object();
    this->add("p.w.weight", {3, 5});
    this->add("p.w.bias", {3});
    this->add("p.n.weight", {4});
    this->add("p.e.weight", {7, 5});
    this->add("head.weight", {7, 5});
  }
};

TEST(ModelTensors, NamesWithAPrefix) {
  const Folder<float> folder;
  const mha::Checkpoint checkpoint(folder.write());
  const Tensors<float> tensors(checkpoint, {"", "p."}, "w.weight");
  EXPECT_TRUE(tensors.contains("n.weight"));
  EXPECT_FALSE(tensors.contains("p.n.weight"));
  EXPECT_TRUE(tensors.has_head("head"));
  mha_test::expect_linear(tensors.linear("w", 5, 3, true).weight, tensors.linear("w", 5, 3, true).bias, folder, "p.w");
  mha_test::expect_matrix(tensors.matrix("w.weight", 3, 5), folder.file.tensors.at("p.w.weight"), true);
}

TEST(BlockNames, HaveTheWeightsAndBiasesOfTheirParts) {
  const mha::detail::BlockNames names{.block = "h.",
                                      .attention_norm = "n",
                                      .query = "q",
                                      .key = "k",
                                      .value = "v",
                                      .output = "o",
                                      .query_norm = "qn",
                                      .feed_forward_norm = "m",
                                      .up = "up",
                                      .down = "down",
                                      .unread = {"mask"},
                                      .in_first = {"table"}};
  for (const char* tensor : {"n.weight", "n.beta", "q.bias", "k.weight", "v.bias", "o.weight", "m.gamma", "up.weight",
                             "down.bias", "qn.weight", "mask"})
    EXPECT_TRUE(names.have(tensor, 1)) << tensor;
  for (const char* tensor :
       {"q", "q.scale", "qq.weight", "gate.weight", "mask.weight", "table", "", "qn.bias", "q.gamma", "up.beta"})
    EXPECT_FALSE(names.have(tensor, 1)) << tensor;
  EXPECT_TRUE(names.have("table", 0));
  auto fused = names;
  fused.fused = "qkv";
  EXPECT_TRUE(fused.have("qkv.weight", 0));
  EXPECT_FALSE(fused.have("q.weight", 0));
}

// A norm has its numbers by one pair of names, and nothing beside them that would be left unread.
TEST(ModelTensors, NormsHaveOnePairOfNames) {
  Folder<float> folder;
  for (const char* name :
       {"old.gamma", "old.beta", "both.weight", "both.gamma", "mixed.weight", "mixed.beta", "r.weight"})
    folder.add(std::string("p.") + name, {5});
  const mha::Checkpoint checkpoint(folder.write());
  const Tensors<float> tensors(checkpoint, {"p."}, "w.weight");
  const auto fault = [&](const char* name, bool bias) {
    return message_of<mha::SafetensorsError>([&] { static_cast<void>(tensors.norm(name, 5, bias)); });
  };
  EXPECT_EQ(fault("old", true), "");
  EXPECT_EQ(fault("r", false), "");
  EXPECT_EQ(fault("both", false),
            checkpoint.path() + ": tensor 'p.both.gamma' is there, config.json asks for '.weight' and '.bias' alone");
  EXPECT_EQ(fault("mixed", false),
            checkpoint.path() + ": tensor 'p.mixed.beta' is there, config.json asks for '.weight' and '.bias' alone");
  EXPECT_EQ(fault("old", false),
            checkpoint.path() + ": tensor 'p.old.beta' is there, config.json asks for a norm without one");
}

TEST(ModelTensors, HeadsAreTiedOrTheirOwn) {
  Folder<float> folder;
  const mha::Checkpoint checkpoint(folder.write());
  const Tensors<float> tensors(checkpoint, {"p."}, "w.weight");
  const auto rows = tensors.matrix("e.weight", 7, 5);
  for (const bool tied : {true, false})  // tied ones are not where the numbers differ
    mha_test::expect_matrix(tensors.head("head", tied, "e.weight", rows).weight, folder.file.tensors.at("head.weight"));
  EXPECT_EQ(tensors.head("none", true, "e.weight", rows).weight.data, rows.data);
  const mha::Tensor<float, 2> fewer(6, 5);
  for (const bool tied : {true, false})
    EXPECT_EQ(message_of<mha::SafetensorsError>(
                  [&] { static_cast<void>(tensors.head("head", tied, "e.weight", fewer.view())); }),
              checkpoint.path() + ": tensor 'head.weight' has shape (7, 5), config.json asks for (6, 5)");
}

// safetensors.torch.save_model keeps the head alone, whose name comes first, and notes that of the embeddings.
TEST(ModelTensors, TheHeadMayBeStoredInPlaceOfTiedEmbeddings) {
  Folder<float> folder;
  folder.file.tensors.erase("p.e.weight");
  folder.file.metadata = {{"format", "pt"}, {"p.e.weight", "head.weight"}};
  const mha::Checkpoint checkpoint(folder.write());
  const Tensors<float> tensors(checkpoint, {"", "p."}, "e.weight");
  const auto rows = tensors.matrix("e.weight", 7, 5);
  mha_test::expect_matrix(rows, folder.file.tensors.at("head.weight"), true);
  EXPECT_EQ(tensors.head("head", true, "e.weight", rows).weight.data, rows.data);
}

TEST(ModelTensors, ACopyHasTheSameScalarShapeAndNumbers) {
  Folder<float> folder;
  folder.file.tensors["p.copy"] = folder.file.tensors.at("p.e.weight");
  folder.file.tensors["p.changed"] = folder.file.tensors.at("p.e.weight");
  folder.file.tensors.at("p.changed").values.back() += 1;
  folder.file.tensors["p.turned"] = folder.file.tensors.at("p.e.weight");
  folder.file.tensors.at("p.turned").shape = {5, 7};
  const mha::Checkpoint checkpoint(folder.write());
  const Tensors<float> tensors(checkpoint, {"p."}, "w.weight");
  EXPECT_TRUE(tensors.is_copy("copy", "e.weight"));
  EXPECT_FALSE(tensors.is_copy("changed", "e.weight"));
  EXPECT_FALSE(tensors.is_copy("turned", "e.weight"));
}

// A head that is a copy of tied embeddings is not converted: it may have many numbers.
TEST(ModelTensors, ACopyOfTheEmbeddingsIsNotWidened) {
  Folder<float> folder;
  folder.add("p.large.weight", {512, 64});
  folder.file.tensors["head.weight"] = folder.file.tensors.at("p.large.weight");
  const mha::Checkpoint checkpoint(folder.write());
  const Tensors<double> tensors(checkpoint, {"p."}, "w.weight");
  const auto rows = tensors.matrix("large.weight", 512, 64);
  support::largest_allocation = 0;
  EXPECT_EQ(tensors.head("head", true, "large.weight", rows).weight.data, rows.data);
  EXPECT_LT(support::largest_allocation, 512 * 64u);
  static_cast<void>(tensors.head("head", false, "large.weight", rows));
  EXPECT_EQ(support::largest_allocation, 512 * 64 * sizeof(double));
}

template <class T, class Stored> void expect_read(std::size_t shift) {
  Folder<Stored> folder;
  folder.file.shift = shift;
  std::shared_ptr<const void> keep;
  const T* data = nullptr;
  {
    const mha::Checkpoint checkpoint(folder.write());
    const Tensors<T> tensors(checkpoint, {"p."}, "w.weight");
    data = tensors.data("w.weight", {3, 5});
    EXPECT_EQ(data, tensors.data("w.weight", {3, 5}));
    EXPECT_EQ(data, Tensors<T>(tensors).bare().data("p.w.weight", {3, 5}));
    keep = tensors.mapping();
  }
  const auto& stored = folder.file.tensors.at("p.w.weight").values;
  for (std::size_t n = 0; n < stored.size(); ++n) EXPECT_EQ(support::to_double(data[n]), support::to_double(stored[n]));
}

// Writers of checkpoints need not pad the header: gpt2 and t5-base of the Hub have their data at an odd byte.
TEST(ModelTensors, NumbersAreReadFromAnyPlaceWidenedAndKept) {
  for (const std::size_t shift : {0u, 1u, 2u, 4u, 7u}) {
    SCOPED_TRACE(shift);
    expect_read<float, float>(shift);
    expect_read<float, mha::bfloat16>(shift);
    expect_read<float, mha::half>(shift);
    expect_read<double, mha::bfloat16>(shift);
    expect_read<double, mha::half>(shift);
    expect_read<double, float>(shift);
    expect_read<double, double>(shift);
    expect_read<mha::bfloat16, mha::bfloat16>(shift);
  }
}

// Only what cannot be read in place has memory of its own.
TEST(ModelTensors, AlignedNumbersAreNotCopied) {
  for (const std::size_t shift : {0u, 1u, 2u, 4u}) {
    Folder<float> folder;
    folder.file.shift = shift;
    const mha::Checkpoint checkpoint(folder.write());
    const Tensors<float> tensors(checkpoint, {"p."}, "w.weight");
    const void* const data = tensors.data("w.weight", {3, 5});
    EXPECT_EQ(data == checkpoint.bytes("p.w.weight").data(), shift % alignof(float) == 0) << shift;
  }
}

TEST(ModelTensors, NothingIsRounded) {
  const Folder<double> folder;
  const mha::Checkpoint checkpoint(folder.write());
  const auto says = [&]<class T>(T) {
    const Tensors<T> tensors(checkpoint, {"p."}, "w.weight");
    return message_of<mha::SafetensorsError>([&] { static_cast<void>(tensors.data("w.weight", {3, 5})); });
  };
  EXPECT_EQ(says(0.f), checkpoint.path() + ": tensor 'p.w.weight' has dtype F64, expected F32");
  EXPECT_EQ(says(mha::half()), checkpoint.path() + ": tensor 'p.w.weight' has dtype F64, expected F16");
}

TEST(ModelTensors, TheShapeIsCheckedFirst) {
  const Folder<float> folder;
  const mha::Checkpoint checkpoint(folder.write());
  const Tensors<float> tensors(checkpoint, {"p."}, "w.weight");
  const auto says = [&](auto&& f) { return message_of<mha::SafetensorsError>([&] { static_cast<void>(f()); }); };
  EXPECT_EQ(says([&] { return tensors.matrix("w.weight", 5, 3); }),
            checkpoint.path() + ": tensor 'p.w.weight' has shape (3, 5), config.json asks for (5, 3)");
  EXPECT_EQ(says([&] { return tensors.vector("w.weight", 15); }),
            checkpoint.path() + ": tensor 'p.w.weight' has shape (3, 5), config.json asks for (15)");
  EXPECT_EQ(says([&] { return tensors.norm("n", 4, true); }),
            checkpoint.path() + ": there is no tensor 'p.n.bias' among the 5 of this checkpoint");
  EXPECT_EQ(says([&] { return tensors.norm("w", 4, false); }),
            checkpoint.path() + ": tensor 'p.w.weight' has shape (3, 5), config.json asks for (4)");
  EXPECT_EQ(says([&] { return tensors.linear("w", 5, 3, false); }),
            checkpoint.path() + ": tensor 'p.w.bias' is there, config.json asks for none");
  EXPECT_EQ(says([&] {
              return Tensors<float>(checkpoint, {"", "q."}, "w.weight").mapping();
            }),
            checkpoint.path() + ": there is no tensor 'w.weight' or 'q.w.weight' among the 5 of this checkpoint");
}

}  // namespace
