// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../block/feed_forward_weights.hpp"
#include "../block/linear_weights.hpp"
#include "../block/norm_weights.hpp"
#include "../core/scalar.hpp"
#include "../core/tensor.hpp"
#include "../core/view.hpp"
#include "../layer/parameters.hpp"
#include "checkpoint.hpp"
#include "model_config.hpp"

namespace mha::inline MHA_NAMESPACE {

/// The weights of one block of a transformer, each to be borrowed by its part.
template <class T> struct BlockWeights {
  BorrowedNorm<T> attention_norm;  ///< before attention; in BERT after it
  BorrowedWeights<T> attention;
  BorrowedNorm<T> cross_norm;  ///< T5's decoder: before cross-attention
  BorrowedWeights<T> cross;    ///< T5's decoder: keys and values of the encoder's rows
  BorrowedNorm<T> feed_forward_norm;
  BorrowedNorm<T> attention_post_norm, feed_forward_post_norm;  ///< Gemma 2 and 3: of each branch, before it is added
  BorrowedFeedForward<T> feed_forward;                          ///< with the gate of a gated pair
};

namespace detail {

/// What a family calls the parts of a block, after the number of the block. A part that it does not have is null.
struct BlockNames {
  const char* block;  // before the number: "encoder.layer."
  const char* attention_norm;
  const char *query, *key, *value, *output;
  const char* query_norm = nullptr;
  const char* key_norm = nullptr;
  const char* feed_forward_norm;
  const char *up, *down;
  const char* gate = nullptr;
  const char* fused = nullptr;  // query, key and value side by side in one matrix
  bool gate_above_up = false;   // gate and up side by side in the matrix `up`
  bool in_out = false;          // matrices are stored (in, out), as Conv1D does; else (out, in)
  const char *attention_post_norm = nullptr, *feed_forward_post_norm = nullptr;
  const char* cross_norm = nullptr;
  const char *cross_query = nullptr, *cross_key = nullptr, *cross_value = nullptr, *cross_output = nullptr;
  const char* unread[2] = {};    // tensors that a block may have and that are not read: buffers of older checkpoints
  const char* in_first[2] = {};  // tensors of block 0 alone that are no part of it

  /// Whether block i may have a tensor of this name, that of the block and a dot left out.
  bool have(std::string_view tensor, Index i) const {
    // What block() and norm() read, or refuse by a sentence of their own.
    const auto is_any = [&](std::initializer_list<const char*> parts, std::initializer_list<std::string_view> ends) {
      return std::ranges::any_of(parts, [&](const char* part) {
        return part != nullptr && tensor.starts_with(part) &&
               std::ranges::find(ends, tensor.substr(std::string_view(part).size())) != ends.end();
      });
    };
    const auto is = [&](const char* name) { return name != nullptr && tensor == name; };
    const bool joined = fused != nullptr;
    return is_any({fused, joined ? nullptr : query, joined ? nullptr : key, joined ? nullptr : value, output, up, down,
                   gate, cross_query, cross_key, cross_value, cross_output},
                  {".weight", ".bias"}) ||
           is_any({attention_norm, feed_forward_norm, attention_post_norm, feed_forward_post_norm, cross_norm},
                  {".weight", ".bias", ".gamma", ".beta"}) ||
           is_any({query_norm, key_norm}, {".weight"}) || std::ranges::any_of(unread, is) ||
           (i == 0 && std::ranges::any_of(in_first, is));
  }
};

/// The tensors of a model by name: each has the shape that config.json implies, or is refused by one sentence. Those of
/// a narrower scalar than T, and those that do not lie in the file as T must in memory, are copied once, and kept as
/// long as the mapping.
template <class T> class ModelTensors {
 public:
  /// The names begin with that of `prefixes` before which `probe` is there.
  ModelTensors(const Checkpoint& checkpoint, std::initializer_list<const char*> prefixes, const std::string& probe)
      : kept_(std::make_shared<Kept>(Kept{checkpoint, {}})) {
    bool found = false;
    for (const char* const prefix : prefixes) {
      if (!checkpoint.contains(prefix + probe)) continue;
      if (found) fail(prefix_ + probe, "is there, and '" + (prefix + probe) + "' too, expected one of them");
      found = true;
      prefix_ = prefix;
    }
    if (found) return;
    std::string names;
    for (const char* const prefix : prefixes) names += (names.empty() ? "'" : " or '") + (prefix + probe) + "'";
    fail_safetensors(checkpoint.path(), "there is no tensor " + names + " among the " +
                                            std::to_string(checkpoint.names().size()) + " of this checkpoint");
  }

  std::shared_ptr<const void> mapping() const { return kept_; }

  bool contains(const std::string& name) const { return kept_->checkpoint.contains(prefix_ + name); }

  TensorView<const T, 2> matrix(const std::string& name, Index rows, Index columns) const {
    return mha::view(data(name, {rows, columns}), rows, columns);
  }
  TensorView<const T, 1> vector(const std::string& name, Index size) const {
    return mha::view(data(name, {size}), size);
  }
  /// The numbers of a tensor of this shape, in a row.
  const T* data(const std::string& base, const std::vector<Index>& shape) const {
    const SafetensorInfo& info = checked(base, shape);
    const std::string name = prefix_ + base;
    if constexpr (std::same_as<T, float> || std::same_as<T, double>) {
      if (info.dtype == "BF16") return copied<bfloat16>(name);
      if (info.dtype == "F16") return copied<half>(name);
      if constexpr (std::same_as<T, double>)
        if (info.dtype == "F32") return copied<float>(name);
    }
    constexpr const char* dtype = safetensors_dtype<T>();
    if (info.dtype != dtype) fail(name, "has dtype " + info.dtype + ", expected " + dtype);
    const std::byte* const stored = kept_->checkpoint.bytes(name).data();
    const bool aligned = reinterpret_cast<std::uintptr_t>(stored) % alignof(T) == 0;
    return aligned ? reinterpret_cast<const T*>(stored) : copied<T>(name);
  }
  /// A tensor of this shape, whose numbers are not looked at.
  const SafetensorInfo& checked(const std::string& base, const std::vector<Index>& shape) const {
    const std::string name = prefix_ + base;
    const SafetensorInfo& info = kept_->checkpoint.info(name);
    if (!std::equal(info.shape.begin(), info.shape.end(), shape.begin(), shape.end(),
                    [](std::uint64_t a, Index b) { return a == static_cast<std::uint64_t>(b); }))
      fail(name, "has shape " + safetensors_excerpt(info.shape) + ", config.json asks for " +
                     safetensors_excerpt(std::vector<std::uint64_t>(shape.begin(), shape.end())));
    return info;
  }

  BorrowedNorm<T> norm(const std::string& name, Index width, bool bias) const {
    const bool old = !contains(name + ".weight") && contains(name + ".gamma");  // BERT's first checkpoints
    const std::string weight_of = old ? ".gamma" : ".weight", bias_of = old ? ".beta" : ".bias";
    for (const char* other : {".gamma", ".bias", ".beta"})
      if (other != weight_of && other != bias_of)
        refuse(name + other, "'" + weight_of + "' and '" + bias_of + "' alone");
    BorrowedNorm<T> w;
    w.weight = vector(name + weight_of, width);
    if (bias)
      w.bias = vector(name + bias_of, width);
    else
      refuse(name + bias_of, "a norm without one");
    return w;
  }

  /// A matrix (in, out) and its bias.
  BorrowedLinear<T> linear(const std::string& name, Index in, Index out, bool bias, bool in_out = false) const {
    BorrowedLinear<T> w;
    w.weight = in_out ? matrix(name + ".weight", in, out) : transposed(matrix(name + ".weight", out, in));
    if (bias)
      w.bias = vector(name + ".bias", out);
    else
      refuse(name + ".bias", "none");
    return w;
  }

  /// The linear from rows to logits: the embeddings (vocabulary, E), which are the tensor `table`, where they are tied,
  /// else a matrix of its own, which has no prefix. Tied ones beside a matrix with other numbers are not, as in
  /// transformers 5.
  BorrowedLinear<T> head(const std::string& name, bool tied, const std::string& table,
                         const TensorView<const T, 2>& embeddings) const {
    const ModelTensors all = bare();
    const bool own = !tied || (has_head(name) && !all.is_copy(name + ".weight", prefix_ + table));
    if (own) return all.linear(name, embeddings.extent[1], embeddings.extent[0], false);
    all.refuse(name + ".bias", "none");
    BorrowedLinear<T> w;
    w.weight = transposed(embeddings);
    return w;
  }
  bool has_head(const std::string& name) const { return kept_->checkpoint.contains(name + ".weight"); }
  /// Whether two tensors are the same numbers in the same scalar and shape.
  bool is_copy(const std::string& name, const std::string& of) const {
    const Checkpoint& file = kept_->checkpoint;
    const SafetensorInfo &a = file.info(prefix_ + name), &b = file.info(prefix_ + of);
    return a.dtype == b.dtype && a.shape == b.shape &&
           std::ranges::equal(file.bytes(prefix_ + name), file.bytes(prefix_ + of));
  }
  /// The same tensors by their whole names.
  ModelTensors bare() const {
    ModelTensors all = *this;
    all.prefix_.clear();
    return all;
  }

  /// The weights of block i.
  BlockWeights<T> block(const BlockNames& names, const ModelConfig& c, Index i, bool norm_bias, bool qk_norm) const {
    const std::string at = names.block + std::to_string(i) + ".";
    const Index width = c.norm.width, hidden = c.feed_forward.d_hidden;
    const bool bias = c.feed_forward.bias;
    BlockWeights<T> w;
    w.attention_norm = norm(at + names.attention_norm, width, norm_bias);
    w.attention = attention(at, names, c.attention);
    for (const auto& [name, to] :
         {std::pair{names.query_norm, &w.attention.query_norm}, std::pair{names.key_norm, &w.attention.key_norm}}) {
      if (name == nullptr) continue;
      if (qk_norm)
        *to = vector(at + name + ".weight", c.attention.head_dim);
      else
        refuse(at + name + ".weight", "none for model_type " + c.model_type);
    }
    if (names.cross_norm != nullptr) {
      BlockNames cross = names;
      cross.query = names.cross_query, cross.key = names.cross_key;
      cross.value = names.cross_value, cross.output = names.cross_output;
      w.cross_norm = norm(at + names.cross_norm, width, norm_bias);
      w.cross = attention(at, cross, c.attention);
    }
    w.feed_forward_norm = norm(at + names.feed_forward_norm, width, norm_bias);
    if (names.attention_post_norm != nullptr)
      w.attention_post_norm = norm(at + names.attention_post_norm, width, norm_bias);
    if (names.feed_forward_post_norm != nullptr)
      w.feed_forward_post_norm = norm(at + names.feed_forward_post_norm, width, norm_bias);
    BorrowedLinear<T> gate;
    if (names.gate_above_up) {
      const BorrowedLinear<T> both = linear(at + names.up, width, 2 * hidden, bias, names.in_out);
      gate = columns(both, 0, hidden);
      w.feed_forward.up = columns(both, hidden, hidden);
    } else {
      w.feed_forward.up = linear(at + names.up, width, hidden, bias, names.in_out);
      if (names.gate != nullptr) gate = linear(at + names.gate, width, hidden, bias, names.in_out);
    }
    w.feed_forward.up.gate = gate.weight;
    w.feed_forward.up.gate_bias = gate.bias;
    w.feed_forward.down = linear(at + names.down, hidden, width, bias, names.in_out);
    return w;
  }

  bool has_blocks(const BlockNames& names) const {
    const auto& all = kept_->checkpoint.names();
    return std::any_of(all.begin(), all.end(),
                       [&](const std::string& name) { return name.starts_with(prefix_ + names.block); });
  }
  /// No tensor belongs to a block beyond those that config.json counts, or to a block that has no such tensor: it would
  /// be of another architecture.
  void require_blocks(const BlockNames& names, Index count) const {
    const std::string begin = prefix_ + names.block;
    for (const std::string& name : kept_->checkpoint.names()) {
      if (!name.starts_with(begin)) continue;
      Index number = -1;
      std::from_chars(name.data() + begin.size(), name.data() + name.size(), number);
      if (number >= count)
        fail(name, "is of block " + std::to_string(number) + ", counted from 0, but config.json asks for " +
                       std::to_string(count) + " blocks");
      const std::string at = begin + std::to_string(number) + ".";
      if (!name.starts_with(at) || !names.have(std::string_view(name).substr(at.size()), number))
        fail(name, "is there, config.json asks for no such tensor in a block");
    }
  }

  /// Block i of so many.
  void require_block(Index i, Index count) const {
    if (i < 0 || i >= count)
      fail_safetensors(kept_->checkpoint.path(), "there is no block " + std::to_string(i) + " among the " +
                                                     std::to_string(count) + " of this model");
  }

  /// A tensor that the model does not have.
  void refuse(const std::string& name, const std::string& wanted) const {
    if (contains(name)) fail(prefix_ + name, "is there, config.json asks for " + wanted);
  }
  [[noreturn]] void fail(const std::string& name, const std::string& fault) const {
    const Checkpoint& file = kept_->checkpoint;
    fail_safetensors(file.contains(name) ? file.path(name) : file.path(), name, fault);
  }

 private:
  /// What mapping() keeps alive.
  struct Kept {
    Checkpoint checkpoint;
    std::map<std::string, std::unique_ptr<T[], AlignedDelete>, std::less<>> copies;
  };

  /// n outputs of a linear, from `first` on.
  static BorrowedLinear<T> columns(const BorrowedLinear<T>& all, Index first, Index n) {
    BorrowedLinear<T> w;
    w.weight = TensorView<const T, 2>{all.weight.data + first * all.weight.stride[1],
                                      {all.weight.extent[0], n},
                                      {all.weight.stride[0], all.weight.stride[1]}};
    if (all.bias.data != nullptr) w.bias = TensorView<const T, 1>{all.bias.data + first, {n}, {1}};
    return w;
  }

  BorrowedWeights<T> attention(const std::string& at, const BlockNames& names, const Config& c) const {
    const Index q = c.query_width(), k = c.key_width(), v = c.num_kv_heads * c.head_dim, E = c.d_model;
    BorrowedWeights<T> w;
    const auto take = [](const BorrowedLinear<T>& from, WeightView<T, 2>& weight, WeightView<T, 1>& bias) {
      weight = from.weight;
      bias = from.bias;
    };
    if (names.fused != nullptr) {
      const BorrowedLinear<T> all = linear(at + names.fused, E, q + k + v, c.bias, names.in_out);
      take(columns(all, 0, q), w.query, w.query_bias);
      take(columns(all, q, k), w.key, w.key_bias);
      take(columns(all, q + k, v), w.value, w.value_bias);
    } else {
      take(linear(at + names.query, E, q, c.has_query_bias(), names.in_out), w.query, w.query_bias);
      take(linear(at + names.key, E, k, c.has_key_bias(), names.in_out), w.key, w.key_bias);
      take(linear(at + names.value, E, v, c.has_value_bias(), names.in_out), w.value, w.value_bias);
    }
    take(linear(at + names.output, c.num_heads * c.head_dim, E, c.has_output_bias(), names.in_out), w.output,
         w.output_bias);
    return w;
  }

  /// The numbers of a tensor of Stored, which may lie anywhere in the file, as T.
  /// For the constructors of families, which ask for every tensor once: later calls find it, and may come from threads.
  template <class Stored> const T* copied(const std::string& name) const {
    const auto found = kept_->copies.find(name);
    if (found != kept_->copies.end()) return std::as_const(*found).second.get();
    const auto stored = kept_->checkpoint.bytes(name);
    const std::size_t size = stored.size() / sizeof(Stored);
    auto copy = aligned_array<T>(size);
    for (std::size_t n = 0; n < size; ++n) {
      Stored x;
      std::memcpy(static_cast<void*>(&x), stored.data() + n * sizeof(Stored), sizeof(Stored));
      if constexpr (std::same_as<T, Stored>)
        copy[n] = x;
      else
        copy[n] = static_cast<T>(static_cast<Accumulator<Stored>>(x));
    }
    return kept_->copies.emplace(name, std::move(copy)).first->second.get();
  }

  std::shared_ptr<Kept> kept_;
  std::string prefix_;
};

}  // namespace detail

}  // namespace mha::inline MHA_NAMESPACE
