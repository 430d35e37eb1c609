// SPDX-License-Identifier: Apache-2.0
#include "checkpoint.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <stdexcept>

#include <nlohmann/json.hpp>

namespace train {
namespace {

using Json = nlohmann::ordered_json;

/// A .safetensors file: the length of the header, a JSON that says where each tensor lies, and the tensors.
class Tensors {
 public:
  void add(const std::string& name, const mha::TensorView<const float, 2>& m) {
    const std::size_t begin = data_.size();
    for (int i = 0; i < m.extent[0]; ++i)
      for (int j = 0; j < m.extent[1]; ++j) append(m(i, j));
    describe(name, {m.extent[0], m.extent[1]}, begin);
  }
  void add(const std::string& name, const mha::TensorView<const float, 1>& v) {
    const std::size_t begin = data_.size();
    for (int i = 0; i < v.extent[0]; ++i) append(v(i));
    describe(name, {v.extent[0]}, begin);
  }

  std::string bytes() const {
    std::string header = header_.dump();
    header.resize((header.size() + 7) / 8 * 8, ' ');  // so that the tensors begin at a multiple of eight bytes
    std::string all;
    for (int byte = 0; byte < 8; ++byte)
      all += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> 8 * byte);
    return all + header + data_;
  }

 private:
  void append(float x) {
    const auto bits = std::bit_cast<std::uint16_t>(mha::bfloat16(x));
    data_ += static_cast<char>(bits & 0xff);
    data_ += static_cast<char>(bits >> 8);
  }
  void describe(const std::string& name, const Json& shape, std::size_t begin) {
    header_[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {begin, data_.size()}}};
  }

  Json header_ = {{"__metadata__", {{"format", "pt"}}}};
  std::string data_;
};

/// Matrices are (in, out) in the library and (out, in) in the file.
std::string tensors_of(const Model<float>& model) {
  Tensors file;
  file.add("model.embed_tokens.weight", model.embedding().table());
  for (std::size_t i = 0; i < model.blocks().size(); ++i) {
    const Block<float>& block = model.blocks()[i];
    const std::string name = "model.layers." + std::to_string(i) + '.';
    const auto attention = block.attention.layer.parameters();
    const auto up = block.feed_forward.layer.up().parameters();
    file.add(name + "input_layernorm.weight", block.norm1.layer.parameters().weight);
    file.add(name + "self_attn.q_proj.weight", mha::transposed(attention.query.matrix()));
    file.add(name + "self_attn.k_proj.weight", mha::transposed(attention.key.matrix()));
    file.add(name + "self_attn.v_proj.weight", mha::transposed(attention.value.matrix()));
    file.add(name + "self_attn.o_proj.weight", mha::transposed(attention.output.weight));
    file.add(name + "post_attention_layernorm.weight", block.norm2.layer.parameters().weight);
    file.add(name + "mlp.gate_proj.weight", mha::transposed(up.gate));
    file.add(name + "mlp.up_proj.weight", mha::transposed(up.weight));
    file.add(name + "mlp.down_proj.weight", mha::transposed(block.feed_forward.layer.down().parameters().weight));
  }
  file.add("model.norm.weight", model.norm().parameters().weight);
  file.add("lm_head.weight", mha::transposed(model.head().parameters().weight));
  return file.bytes();
}

/// A window of the context is what the model has learned to look back at; there are positions for longer texts.
Json config_of(const ModelConfig& c, const std::string& made_by) {
  return {{"architectures", {"MistralForCausalLM"}},
          {"dtype", "bfloat16"},
          {"head_dim", c.width / c.heads},
          {"hidden_act", "silu"},
          {"hidden_size", c.width},
          {"intermediate_size", c.hidden},
          {"max_position_embeddings", kPositions},
          {"mha_made_by", made_by},
          {"model_type", "mistral"},
          {"num_attention_heads", c.heads},
          {"num_hidden_layers", c.layers},
          {"num_key_value_heads", c.heads},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000.0},
          {"sliding_window", c.context},
          {"tie_word_embeddings", false},
          {"vocab_size", c.vocabulary}};
}

/// Byte-level BPE without merges. A byte is spelled as itself where it can be seen, and the others from U+0100 on.
Json tokenizer() {
  Json vocabulary;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
    const int c = visible ? byte : next++;
    std::string spelled;
    if (c >= 0x80) spelled += static_cast<char>(0xC0 | c >> 6);
    spelled += static_cast<char>(c >= 0x80 ? 0x80 | (c & 0x3F) : c);
    vocabulary[spelled] = byte;
  }
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  return {{"version", "1.0"},
          {"added_tokens", Json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}}};
}

}  // namespace

void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  if (!file) throw std::runtime_error("cannot write '" + path.string() + "'");
}

void write_checkpoint(const Model<float>& model, const std::filesystem::path& folder, const std::string& made_by) {
  write_file(folder / "config.json",
             config_of(model.config(), made_by).dump(2, ' ', false, Json::error_handler_t::replace) + '\n');
  write_file(folder / "tokenizer.json", tokenizer().dump(1) + '\n');
  write_file(folder / "model.safetensors", tensors_of(model));
}

}  // namespace train
