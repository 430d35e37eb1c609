// SPDX-License-Identifier: Apache-2.0
#include "checkpoint.hpp"

#include <cstddef>
#include <fstream>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include <mha/io.hpp>

namespace train {
namespace {

using Json = nlohmann::ordered_json;

/// In bfloat16, by the names of Hugging Face's model.
void write_tensors(const Model<float>& model, const std::filesystem::path& path) {
  mha::SafetensorsWriter file;
  const auto save = [&](const std::string& name, const auto& part) {
    mha::save_weights<mha::bfloat16>(file, name, part);
  };
  file.add<mha::bfloat16>("model.embed_tokens.weight", model.embedding().table());
  for (std::size_t i = 0; i < model.blocks().size(); ++i) {
    const Block<float>& block = model.blocks()[i];
    const std::string name = "model.layers." + std::to_string(i) + '.';
    save(name + "input_layernorm", block.norm1.layer);
    save(name + "self_attn", block.attention.layer);
    save(name + "post_attention_layernorm", block.norm2.layer);
    save(name + "mlp", block.feed_forward.layer);
  }
  save("model.norm", model.norm());
  save("lm_head", model.head());
  file.metadata("format", "pt");
  file.write(path);
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
  write_tensors(model, folder / "model.safetensors");
}

}  // namespace train
