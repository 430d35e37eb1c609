// SPDX-License-Identifier: Apache-2.0
// libFuzzer's input as the config.json of a model folder, whose tensors stay the same small ones. Every family refuses
// it with a SafetensorsError of one short line, or its weights have the shapes that it asks for.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <stdlib.h>

#include <mha/io.hpp>

namespace {

#define HOLDS(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

using mha::Index;

/// A .safetensors file of float zeros.
class Zeros {
 public:
  void add(const std::string& name, const std::vector<Index>& shape) {
    std::size_t size = sizeof(float);
    for (const Index extent : shape) size *= static_cast<std::size_t>(extent);
    header_[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {data_, data_ + size}}};
    data_ += size;
  }
  void linear(const std::string& name, Index out, Index in, bool bias = true) {
    add(name + ".weight", {out, in});
    if (bias) add(name + ".bias", {out});
  }
  void write(const std::filesystem::path& path) const {
    std::string text = header_.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    std::ofstream file(path, std::ios::binary);
    for (int i = 0; i < 8; ++i) file.put(static_cast<char>(text.size() >> (8 * i) & 0xff));
    file << text << std::string(data_, '\0');
  }

 private:
  nlohmann::json header_ = nlohmann::json::object();
  std::size_t data_ = 0;
};

/// One block of each family, 4 wide and 6 hidden, in one file: their names do not meet.
Zeros one_block_of_each() {
  Zeros f;
  f.add("bert.embeddings.word_embeddings.weight", {5, 4});
  f.add("bert.embeddings.position_embeddings.weight", {5, 4});
  f.add("bert.embeddings.token_type_embeddings.weight", {2, 4});
  for (const char* norm :
       {"embeddings.LayerNorm", "encoder.layer.0.attention.output.LayerNorm", "encoder.layer.0.output.LayerNorm"})
    f.add(std::string("bert.") + norm + ".weight", {4}), f.add(std::string("bert.") + norm + ".bias", {4});
  for (const char* part : {"self.query", "self.key", "self.value", "output.dense"})
    f.linear(std::string("bert.encoder.layer.0.attention.") + part, 4, 4);
  f.linear("bert.encoder.layer.0.intermediate.dense", 6, 4), f.linear("bert.encoder.layer.0.output.dense", 4, 6);
  f.add("model.embed_tokens.weight", {5, 4}), f.add("model.norm.weight", {4}), f.add("lm_head.weight", {5, 4});
  for (const char* norm :
       {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"})
    f.add(std::string("model.layers.0.") + norm + ".weight", {4});
  for (const char* part : {"q", "k", "v", "o"})
    f.linear(std::string("model.layers.0.self_attn.") + part + "_proj", 4, 4, false);
  f.linear("model.layers.0.mlp.gate_proj", 6, 4, false), f.linear("model.layers.0.mlp.up_proj", 6, 4, false);
  f.linear("model.layers.0.mlp.down_proj", 4, 6, false);
  f.linear("model.layers.0.self_attn.qkv_proj", 12, 4, false);
  f.linear("model.layers.0.mlp.gate_up_proj", 12, 4, false);
  f.add("shared.weight", {5, 4}), f.add("encoder.final_layer_norm.weight", {4});
  f.add("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", {8, 2});
  for (const char* part : {"q", "k", "v", "o"})
    f.linear(std::string("encoder.block.0.layer.0.SelfAttention.") + part, 4, 4, false);
  for (const char* norm : {"layer.0.layer_norm", "layer.1.layer_norm"})
    f.add(std::string("encoder.block.0.") + norm + ".weight", {4});
  f.linear("encoder.block.0.layer.1.DenseReluDense.wi", 6, 4, false);
  f.linear("encoder.block.0.layer.1.DenseReluDense.wo", 4, 6, false);
  return f;
}

/// A folder for this process, removed at its end, its tensors opened once.
const mha::Checkpoint& folder() {
  static const mha::Checkpoint checkpoint = [] {
    std::string root = (std::filesystem::temp_directory_path() / "mha_fuzz_XXXXXX").string();
    HOLDS(::mkdtemp(root.data()) != nullptr);
    one_block_of_each().write(std::filesystem::path(root) / "model.safetensors");
    const mha::Checkpoint made(root);
    std::filesystem::remove(std::filesystem::path(root) / "model.safetensors");  // the mapping stays
    return made;
  }();
  static const struct Removed {
    ~Removed() { std::filesystem::remove_all(checkpoint.folder()); }
  } at_the_end;
  return checkpoint;
}

void check_sizes(const mha::ModelConfig& c) {
  HOLDS(c.layers == 1 && c.norm.width == 4 && c.attention.d_model == 4 && c.feed_forward.d_hidden == 6);
  HOLDS(c.attention.num_heads > 0 && c.attention.num_heads % c.attention.num_kv_heads == 0);
  HOLDS(c.attention.query_width() == 4 && *c.norm.eps >= 0 && !c.activation.empty());
}
template <class T> void check_block(const mha::BlockWeights<T>& w) {
  HOLDS(w.attention.query.extent[0] == 4 && w.attention.query.extent[1] == 4 && w.attention.output.extent[1] == 4);
  HOLDS(w.feed_forward.up.weight.extent[1] == 6 && w.feed_forward.down.weight.extent[0] == 6 &&
        w.attention_norm.weight.extent[0] == 4);
  float sum = 0;
  for (Index i = 0; i < 4; ++i)
    for (Index j = 0; j < 6; ++j)
      sum += float(w.feed_forward.up.weight(i, j)) + float(w.feed_forward.down.weight(j, i));
  HOLDS(sum == 0);
}

template <class F> void accepts_or_refuses(const F& f) {
  try {
    f();
  } catch (const mha::SafetensorsError& error) {
    const std::string_view text = error.what();
    HOLDS(!text.empty() && text.size() < 1000);
    HOLDS(std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  const mha::Checkpoint& checkpoint = folder();
  std::ofstream(checkpoint.folder() / "config.json", std::ios::binary)
      .write(reinterpret_cast<const char*>(input), static_cast<std::streamsize>(size));
  accepts_or_refuses([&] {
    const mha::Bert<float> model(checkpoint);
    check_sizes(model.config()), check_block(model.block(0));
  });
  accepts_or_refuses([&] {
    const mha::Llama<double> model(checkpoint);
    check_sizes(model.config()), check_block(model.block(0));
    HOLDS(model.config().window(0).left.value >= 0 && model.config().scaled_rotary().base > 0);
  });
  accepts_or_refuses([&] {
    const mha::Gemma<float> model(checkpoint);
    const mha::GemmaConfig& c = model.config();
    check_sizes(c), check_block(model.block(0));
    HOLDS(c.window(0).left.value >= 0 && c.scaled_rotary(0).base > 0 && c.norm.zero_centered);
    HOLDS(c.attention_cap.value_or(1) > 0 && c.logit_cap.value_or(1) > 0);
  });
  accepts_or_refuses([&] {
    const mha::T5<float> model(checkpoint);
    check_sizes(model.config()), check_block(model.encoder_block(0));
    HOLDS(model.encoder_bias().table().size() == 16);
  });
  accepts_or_refuses([&] { mha::Gpt2<float>{checkpoint}; });
  accepts_or_refuses([&] { mha::Vit<float>{checkpoint}; });
  return 0;
}
