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
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <stdlib.h>

#include <mha/io.hpp>
#include <mha/policy/score/softcap.hpp>

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

/// What a norm of layers has.
void add_norm(Zeros& f, const std::string& name) { f.add(name + ".weight", {4}), f.add(name + ".bias", {4}); }

Zeros bert() {
  Zeros f;
  f.add("bert.embeddings.word_embeddings.weight", {5, 4});
  f.add("bert.embeddings.position_embeddings.weight", {5, 4});
  f.add("bert.embeddings.token_type_embeddings.weight", {2, 4});
  const std::string at = "bert.encoder.layer.0.";
  add_norm(f, "bert.embeddings.LayerNorm");
  add_norm(f, at + "attention.output.LayerNorm"), add_norm(f, at + "output.LayerNorm");
  for (const char* part : {"self.query", "self.key", "self.value", "output.dense"})
    f.linear(at + "attention." + part, 4, 4);
  f.linear(at + "intermediate.dense", 6, 4), f.linear(at + "output.dense", 4, 6);
  return f;
}

enum class Decoder { llama, qwen3, phi3, gemma2 };
Zeros decoder(Decoder kind) {
  Zeros f;
  f.add("model.embed_tokens.weight", {5, 4}), f.add("model.norm.weight", {4}), f.add("lm_head.weight", {5, 4});
  const std::string at = "model.layers.0.";
  f.add(at + "input_layernorm.weight", {4}), f.add(at + "post_attention_layernorm.weight", {4});
  if (kind == Decoder::gemma2)
    f.add(at + "pre_feedforward_layernorm.weight", {4}), f.add(at + "post_feedforward_layernorm.weight", {4});
  if (kind == Decoder::qwen3) f.add(at + "self_attn.q_norm.weight", {2}), f.add(at + "self_attn.k_norm.weight", {2});
  f.linear(at + "self_attn.o_proj", 4, 4, false), f.linear(at + "mlp.down_proj", 4, 6, false);
  if (kind == Decoder::phi3) {
    f.linear(at + "self_attn.qkv_proj", 12, 4, false), f.linear(at + "mlp.gate_up_proj", 12, 4, false);
  } else {
    for (const char* part : {"q", "k", "v"}) f.linear(at + "self_attn." + part + "_proj", 4, 4, false);
    f.linear(at + "mlp.gate_proj", 6, 4, false), f.linear(at + "mlp.up_proj", 6, 4, false);
  }
  return f;
}

Zeros t5() {
  Zeros f;
  const std::string at = "encoder.block.0.layer.";
  f.add("shared.weight", {5, 4}), f.add("encoder.final_layer_norm.weight", {4});
  f.add(at + "0.SelfAttention.relative_attention_bias.weight", {8, 2});
  for (const char* part : {"q", "k", "v", "o"}) f.linear(at + "0.SelfAttention." + part, 4, 4, false);
  f.add(at + "0.layer_norm.weight", {4}), f.add(at + "1.layer_norm.weight", {4});
  f.linear(at + "1.DenseReluDense.wi", 6, 4, false), f.linear(at + "1.DenseReluDense.wo", 4, 6, false);
  return f;
}

Zeros gpt2() {
  Zeros f;
  f.add("wte.weight", {5, 4}), f.add("wpe.weight", {5, 4});
  add_norm(f, "ln_f"), add_norm(f, "h.0.ln_1"), add_norm(f, "h.0.ln_2");
  f.add("h.0.attn.c_attn.weight", {4, 12}), f.add("h.0.attn.c_attn.bias", {12});
  f.linear("h.0.attn.c_proj", 4, 4);
  f.add("h.0.mlp.c_fc.weight", {4, 6}), f.add("h.0.mlp.c_fc.bias", {6});
  f.add("h.0.mlp.c_proj.weight", {6, 4}), f.add("h.0.mlp.c_proj.bias", {4});
  return f;
}

Zeros vit() {
  Zeros f;
  const std::string at = "vit.encoder.layer.0.";
  f.add("vit.embeddings.patch_embeddings.projection.weight", {4, 2, 4, 4});
  f.add("vit.embeddings.patch_embeddings.projection.bias", {4});
  f.add("vit.embeddings.cls_token", {1, 1, 4}), f.add("vit.embeddings.position_embeddings", {1, 7, 4});
  add_norm(f, "vit.layernorm"), add_norm(f, at + "layernorm_before"), add_norm(f, at + "layernorm_after");
  for (const char* part : {"attention.query", "attention.key", "attention.value", "output.dense"})
    f.linear(at + "attention." + part, 4, 4);
  f.linear(at + "intermediate.dense", 6, 4), f.linear(at + "output.dense", 4, 6);
  f.linear("classifier", 1, 4);
  return f;
}

/// A folder for this process, removed at its end: a checkpoint of each family, opened once, 4 wide and 6 hidden, and
/// the config.json that all of them read.
class Folder {
 public:
  Folder()
      : root_(made()),
        bert(of(::bert())),
        llama(of(decoder(Decoder::llama))),
        qwen3(of(decoder(Decoder::qwen3))),
        phi3(of(decoder(Decoder::phi3))),
        gemma2(of(decoder(Decoder::gemma2))),
        t5(of(::t5())),
        gpt2(of(::gpt2())),
        vit(of(::vit())) {}
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(root_); }

  void write_config(std::string_view text) const {
    std::ofstream(root_ / "config.json", std::ios::binary)
        .write(text.data(), static_cast<std::streamsize>(text.size()));
  }

 private:
  static std::filesystem::path made() {
    std::string root = (std::filesystem::temp_directory_path() / "mha_fuzz_XXXXXX").string();
    HOLDS(::mkdtemp(root.data()) != nullptr);
    return root;
  }
  mha::Checkpoint of(const Zeros& zeros) const {
    const std::filesystem::path path = root_ / "a.safetensors";
    zeros.write(path);
    const mha::Checkpoint opened(path);
    std::filesystem::remove(path);  // the mapping stays
    return opened;
  }

  std::filesystem::path root_;

 public:
  mha::Checkpoint bert, llama, qwen3, phi3, gemma2, t5, gpt2, vit;
};

const Folder& folder() {
  static const Folder made;
  return made;
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

/// Whether f accepts it.
template <class F> bool accepts(const F& f) {
  try {
    f();
    return true;
  } catch (const mha::SafetensorsError& error) {
    const std::string_view text = error.what();
    HOLDS(!text.empty() && text.size() < 1000);
    HOLDS(std::none_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }));
    return false;
  }
}

/// How many families accept it.
int accepting(std::string_view config) {
  const Folder& files = folder();
  files.write_config(config);
  int n = accepts([&] {
    const mha::Bert<float> model(files.bert);
    check_sizes(model.config()), check_block(model.block(0));
  });
  for (const mha::Checkpoint* checkpoint : {&files.llama, &files.qwen3, &files.phi3})
    n += accepts([&] {
      const mha::Llama<double> model(*checkpoint);
      check_sizes(model.config()), check_block(model.block(0));
      const auto rotary = model.config().scaled_rotary();
      HOLDS(model.config().window(0).left.value >= 0 && rotary.base > 0);
      rotary.check(2);
    });
  n += accepts([&] {
    const mha::Gemma<float> model(files.gemma2);
    const mha::GemmaConfig& c = model.config();
    check_sizes(c), check_block(model.block(0));
    HOLDS(c.window(0).left.value >= 0 && c.scaled_rotary(0).base > 0 && c.norm.zero_centered);
    c.scaled_rotary(0).check(2);
    for (const float cap : {c.attention_cap.value_or(1), c.logit_cap.value_or(1)}) mha::SoftCap{cap}.check(1);
  });
  n += accepts([&] {
    const mha::T5<float> model(files.t5);
    check_sizes(model.config()), check_block(model.encoder_block(0));
    HOLDS(model.encoder_bias().table().size() == 16);
  });
  n += accepts([&] {
    const mha::Gpt2<float> model(files.gpt2);
    check_sizes(model.config()), check_block(model.block(0));
  });
  n += accepts([&] {
    const mha::Vit<float> model(files.vit);
    check_sizes(model.config()), check_block(model.block(0));
    HOLDS(model.config().patches() == 6 && model.config().patch_size() == 32);
  });
  return n;
}

}  // namespace

/// Every file of the corpus here, named by its family, is one that this family accepts: else no input that is made of
/// it would reach the family's weights.
extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  for (int i = 1; i < *count; ++i)
    for (const char* family : {"bert", "gemma2", "gpt2", "llama", "mistral", "phi3", "qwen3", "t5", "vit"}) {
      std::ifstream file(std::filesystem::path((*arguments)[i]) / family, std::ios::binary);
      if (file) HOLDS(accepting(std::string(std::istreambuf_iterator<char>(file), {})) == 1);
    }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* input, std::size_t size) {
  accepting({reinterpret_cast<const char*>(input), size});
  return 0;
}
