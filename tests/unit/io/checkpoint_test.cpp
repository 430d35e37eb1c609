// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <mha/io/checkpoint.hpp>

#include "checkpoint_files.hpp"

namespace {

using mha::Checkpoint;
using mha_test::TensorFile;

/// Tensors a, b and c in two shards and an index.
struct Sharded {
  mha_test::Scratch scratch;
  TensorFile<float> first, second;
  std::string index =
      R"({"metadata":{"total_size":1},"weight_map":{"a":"one.safetensors","b":"two.safetensors","c":"one.safetensors"}})";

  Sharded() {
    support::Random random("shards");
    first.add("a", {2, 3}, random);
    first.add("c", {4}, random);
    second.add("b", {5, 1}, random);
  }
  void write() const {
    scratch.write("one.safetensors", first.bytes());
    scratch.write("two.safetensors", second.bytes());
    scratch.write("model.safetensors.index.json", index);
  }
  std::string path() const { return (scratch.root() / "model.safetensors.index.json").string(); }
  /// What opening the folder says, after its name.
  std::string refusal() const {
    write();
    const std::string message = mha_test::message_of<mha::SafetensorsError>([&] { Checkpoint{scratch.root()}; }),
                      begin = path() + ": ";
    return message.starts_with(begin) ? message.substr(begin.size()) : message;
  }
};

TEST(Checkpoint, ShardsAreLookedUpAsOneFile) {
  Sharded files;
  files.write();
  const std::filesystem::path index = files.path();
  for (const auto& path : {files.scratch.root(), index}) {
    const Checkpoint checkpoint(path);
    EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b", "c"}));
    EXPECT_TRUE(checkpoint.contains("b"));
    EXPECT_FALSE(checkpoint.contains("d"));
    EXPECT_EQ(checkpoint.info("a").shape, (std::vector<std::uint64_t>{2, 3}));
    const auto a = checkpoint.view<float, 2>("a");
    const auto b = checkpoint.copy<float, 2>("b");
    for (int i = 0; i < 2; ++i)
      for (int j = 0; j < 3; ++j) EXPECT_EQ(a(i, j), files.first.tensors.at("a").values[std::size_t(3 * i + j)]);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(b(i, 0), files.second.tensors.at("b").values[std::size_t(i)]);
    EXPECT_EQ(checkpoint.path(), files.path());
    EXPECT_EQ(checkpoint.path("b"), (files.scratch.root() / "two.safetensors").string());
    EXPECT_EQ(checkpoint.folder(), files.scratch.root());
  }
}

TEST(Checkpoint, OneFileIsACheckpointToo) {
  const Sharded files;
  files.write();
  const auto file = files.scratch.write("model.safetensors", files.first.bytes());
  for (const auto& path : {files.scratch.root(), file}) {  // before the index, as Hugging Face's loader reads it
    const Checkpoint checkpoint(path);
    EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "c"}));
    EXPECT_EQ((checkpoint.view<float, 1>("c")(3)), files.first.tensors.at("c").values[3]);
    EXPECT_EQ(checkpoint.folder(), files.scratch.root());
  }
}

TEST(Checkpoint, TheMappingKeepsEveryShard) {
  const Sharded files;
  files.write();
  auto checkpoint = std::make_unique<Checkpoint>(files.scratch.root());
  const auto a = checkpoint->view<float, 2>("a");
  const auto b = checkpoint->view<float, 2>("b");
  const std::shared_ptr<const void> keep = Checkpoint(*checkpoint).mapping();
  checkpoint.reset();
  EXPECT_EQ(keep.use_count(), 1);
  EXPECT_EQ(a(1, 2), files.first.tensors.at("a").values[5]);
  EXPECT_EQ(b(4, 0), files.second.tensors.at("b").values[4]);
}

TEST(Checkpoint, OneThatWasMovedFromIsAsItWas) {
  const Sharded files;
  files.write();
  Checkpoint from(files.scratch.root());
  Checkpoint to = std::move(from);
  EXPECT_EQ(from.names(), to.names());
  to = std::move(from);
  EXPECT_EQ((from.view<float, 2>("a").data), (to.view<float, 2>("a").data));
}

TEST(Checkpoint, AnIndexThatDoesNotFitItsShardsIsRefused) {
  EXPECT_EQ(Sharded().refusal(), "");
  {
    Sharded files;
    files.index = R"({"weight_map":{"a":"one.safetensors","b":"three.safetensors","c":"one.safetensors"}})";
    EXPECT_EQ(files.refusal(), "tensor 'b' is in shard 'three.safetensors', but there is no such file");
  }
  {
    Sharded files;
    files.second.tensors["a"] = files.first.tensors["a"];
    EXPECT_EQ(files.refusal(), "tensor 'a' is in shard 'two.safetensors', but the index names 'one.safetensors'");
  }
  {
    Sharded files;
    files.second.tensors["d"] = files.first.tensors["a"];
    EXPECT_EQ(files.refusal(), "tensor 'd' is in shard 'two.safetensors', but the index lacks it");
  }
  {
    Sharded files;
    files.index = R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors"}})";
    EXPECT_EQ(files.refusal(), "the index names tensor 'a' twice");
  }
  {
    Sharded files;
    files.index = "{";
    EXPECT_EQ(files.refusal(), "the index is not valid JSON at its byte 2");
  }
}

// Writers leave tied tensors out of a shard, but not always out of the index: google/flan-t5-xl.
TEST(Checkpoint, WhatTheIndexNamesAndItsShardLacksIsNotThere) {
  Sharded files;
  files.second.tensors.erase("b");
  files.write();
  const Checkpoint checkpoint(files.scratch.root());
  EXPECT_FALSE(checkpoint.contains("b"));
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "c"}));
  EXPECT_EQ((checkpoint.view<float, 1>("c")(3)), files.first.tensors.at("c").values[3]);
  for (const bool whole : {true, false})
    EXPECT_EQ(
        mha_test::message_of<mha::SafetensorsError>([&] {
          if (whole)
            static_cast<void>(checkpoint.view<float, 2>("b"));
          else
            static_cast<void>(checkpoint.info("b"));
        }),
        files.path() +
            ": tensor 'b' is in shard 'two.safetensors' by the index, but is not among the 0 tensors of that file");
}

TEST(Checkpoint, TiedTensorsAreFoundByEveryName) {
  Sharded files;
  files.second.metadata = {{"format", "pt"}, {"tied", "b"}, {"c", "b"}};
  files.index.insert(files.index.find("\"a\":"), R"("listed":"two.safetensors",)");
  files.second.metadata["listed"] = "b";
  files.write();
  const auto one = files.scratch.write("one_file.safetensors", files.second.bytes());
  for (const auto& path : {files.scratch.root(), one}) {
    const Checkpoint checkpoint(path);
    for (const char* const name : {"tied", "listed"}) {
      EXPECT_TRUE(checkpoint.contains(name));
      EXPECT_EQ((checkpoint.view<float, 2>(name).data), (checkpoint.view<float, 2>("b").data));
      EXPECT_EQ(checkpoint.path(name), checkpoint.path("b"));
    }
    EXPECT_FALSE(checkpoint.contains("format"));
  }
  const Checkpoint sharded(files.scratch.root());
  EXPECT_EQ((sharded.view<float, 1>("c")(3)), files.first.tensors.at("c").values[3]) << "what is stored is itself";
}

TEST(Checkpoint, AShardThatIsCutShortIsRefusedByItsOwnName) {
  const Sharded files;
  files.write();
  const std::string bytes = files.second.bytes();
  const auto path = files.scratch.write("two.safetensors", std::string_view(bytes).substr(0, bytes.size() - 4));
  EXPECT_EQ(mha_test::message_of<mha::SafetensorsError>([&] { Checkpoint{files.scratch.root()}; }),
            path.string() + ": tensor 'b' ends at byte 20 of the data, but the file holds only 16 (is it truncated?)");
}

TEST(Checkpoint, WhatIsNotThereIsSaidInOneSentence) {
  const Sharded files;
  const auto says = [](auto&& f) { return mha_test::message_of<mha::SafetensorsError>(f); };
  const std::string folder = files.scratch.root().string();
  EXPECT_EQ(says([&] { Checkpoint{folder}; }),
            folder + ": the folder has neither model.safetensors nor model.safetensors.index.json");
  EXPECT_EQ(says([] { Checkpoint{"/no/such/folder"}; }), "cannot open '/no/such/folder': No such file or directory");
  EXPECT_EQ(says([] { Checkpoint{"/no/such.index.json"}; }),
            "cannot open '/no/such.index.json': No such file or directory");
  files.write();
  const Checkpoint checkpoint(files.scratch.root());
  EXPECT_EQ(says([&] { static_cast<void>(checkpoint.view<float, 1>("x")); }),
            files.path() + ": there is no tensor 'x' among the 3 of this checkpoint");
  EXPECT_EQ(says([&] { static_cast<void>(checkpoint.view<mha::bfloat16, 1>("c")); }),
            (files.scratch.root() / "one.safetensors").string() + ": tensor 'c' has dtype F32, expected BF16");
}

}  // namespace
