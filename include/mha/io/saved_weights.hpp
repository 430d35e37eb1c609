// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../block/feed_forward_weights.hpp"
#include "../block/linear_weights.hpp"
#include "../block/norm_weights.hpp"
#include "../core/check.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"
#include "../layer/gradients.hpp"
#include "../layer/parameter_views.hpp"
#include "../policy/trained_score.hpp"
#include "dense_rows.hpp"
#include "safetensors.hpp"
#include "safetensors_header.hpp"
#include "safetensors_writer.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace detail {

/// f(name, view, rank) for the tensors of a part in a file, in order: matrices are (out, in), of rank 2, where the
/// heads of a view are axes of their own. Null data for what the part does not have.
template <class T, class F> void each_saved(const LinearViews<T>& v, const F& f) {
  f("weight", transposed(v.weight), 2), f("bias", v.bias, 1);
  f("gate.weight", transposed(v.gate), 2), f("gate.bias", v.gate_bias, 1);
}
template <class T, class F> void each_saved(const FeedForwardViews<T>& v, const F& f) {
  f("gate_proj.weight", transposed(v.up.gate), 2), f("gate_proj.bias", v.up.gate_bias, 1);
  f("up_proj.weight", transposed(v.up.weight), 2), f("up_proj.bias", v.up.bias, 1);
  f("down_proj.weight", transposed(v.down.weight), 2), f("down_proj.bias", v.down.bias, 1);
}
template <class T, class F> void each_saved(const NormViews<T>& v, const F& f) {
  f("weight", v.weight, 1), f("bias", v.bias, 1);
}
template <class T, class F> void each_saved(const ParameterViews<T>& v, const F& f) {
  const auto out_in = [](const TensorView<T, 3>& w) {  // (H, E, D) → (H, D, E)
    return TensorView<T, 3>{w.data, {w.extent[0], w.extent[2], w.extent[1]}, {w.stride[0], w.stride[2], w.stride[1]}};
  };
  f("q_proj.weight", out_in(v.query.heads), 2), f("q_proj.bias", v.query.bias, 1);
  f("k_proj.weight", out_in(v.key.heads), 2), f("k_proj.bias", v.key.bias, 1);
  f("v_proj.weight", out_in(v.value.heads), 2), f("v_proj.bias", v.value.bias, 1);
  f("o_proj.weight", transposed(v.output.weight), 2), f("o_proj.bias", v.output.bias, 1);
  f("q_norm.weight", v.query_norm, 1), f("k_norm.weight", v.key_norm, 1), f("gate", v.gate, 1);
}

/// A part with policies that are trained too.
template <class Part>
concept HasScoreAndSink = requires(const Part& part) {
  part.score();
  part.sink();
};
/// Whether update() writes the numbers of the layer's score.
template <class Part> constexpr bool trains_its_score() {
  if constexpr (HasScoreAndSink<Part>) {
    using On = std::remove_cvref_t<decltype(std::declval<const Part&>().backend())>;
    using Score = std::remove_cvref_t<decltype(std::declval<const Part&>().score())>;
    return trains_on<On, typename Part::Scalar, Score>;
  } else {
    return false;
  }
}

template <class X> TensorView<X, 1> view_of(const std::span<X>& numbers) {
  return {numbers.data(), {static_cast<Index>(numbers.size())}, {1}};
}
/// f likewise for the numbers of a layer's policies.
template <bool trains, class S, class Sink, class F> void each_saved(S& score, Sink& sink, const F& f) {
  int number = 0;
  const auto next = [&] { return "score." + std::to_string(number++); };
  if constexpr (trains)
    for_each_numbers(score, trained(std::as_const(score)),
                     [&](const auto& numbers, const auto&) { f(next().c_str(), view_of(numbers), 1); });
  f(next().c_str(), TensorView<const float, 1>{}, 1);
  if constexpr (requires { sink.numbers(); })
    f("sinks", view_of(sink.numbers()), 1);
  else
    f("sinks", TensorView<const float, 1>{}, 1);
}

/// How many numbers there are in these views.
template <class Views> std::int64_t saved_count(const Views& weights) {
  std::int64_t count = 0;
  each_saved(weights, [&](const char*, const auto& v, int) { count += v.data == nullptr ? 0 : v.size(); });
  return count;
}

inline std::string saved_name(const std::string& part, const char* tensor) {
  return part.empty() ? tensor : part + "." + tensor;
}

/// Whether elements of Stored are read as X, which loses nothing.
template <class Stored, class X>
constexpr bool reads_as = std::is_same_v<Stored, X> || (std::is_same_v<X, double> && StoredReal<Stored>) ||
                          (std::is_same_v<X, float> && StoredReal<Stored> && sizeof(Stored) == 2);

/// f(a Stored) for the scalar of this dtype, if it is read as X; whether it is.
template <class X, class F> bool with_stored(const std::string& dtype, const F& f) {
  const auto try_one = [&]<class Stored>(Stored one) {
    if constexpr (reads_as<Stored, X>) {
      if (dtype != safetensors_dtype<Stored>()) return false;
      f(one);
      return true;
    }
    return false;
  };
  if constexpr (StoredReal<X>)
    return try_one(double{}) || try_one(float{}) || try_one(half{}) || try_one(bfloat16{});
  else
    return try_one(X{});
}

/// A tensor of a file is what a part has.
///
/// Errors    SafetensorsError that names it
template <class File, class X, int Rank>
void check_saved(const File& file, const std::string& name, const TensorView<const X, Rank>& v, int rank) {
  if (v.data == nullptr) {
    if (file.contains(name)) fail_safetensors(file.path(), name, "is there, but the part has none");
    return;
  }
  static_assert(safetensors_dtype<X>() != nullptr,
                "mha: safetensors files hold no such element type: use double, float, half, bfloat16, bool or an "
                "integer (see mha/io/safetensors.hpp)");
  const SafetensorInfo& info = file.info(name);
  const std::vector<std::uint64_t> shape = joined_shape(v, rank);
  if (info.shape != shape)
    fail_safetensors(file.path(), name,
                     "has shape " + safetensors_excerpt(info.shape) + ", expected " + safetensors_excerpt(shape));
  if (!with_stored<X>(info.dtype, [](auto) {}))
    fail_safetensors(file.path(), name,
                     "has dtype " + info.dtype + ", expected " + safetensors_dtype<X>() +
                         (std::is_floating_point_v<X> ? " or a narrower one" : ""));
}

/// v ← a tensor that is checked, wherever it lies in the file.
template <class File, class X, int Rank>
void read_saved(const File& file, const std::string& name, const TensorView<X, Rank>& v) {
  if (v.data == nullptr) return;
  const std::byte* from = file.bytes(name).data();
  with_stored<X>(file.info(name).dtype, [&](auto stored) {
    const TensorView<X, 5> to = five_axes(v);
    each_row(to, [&](X* row) {
      for (Index i = 0; i < to.extent[4]; ++i, from += sizeof stored) {
        std::memcpy(&stored, from, sizeof stored);
        row[i * to.stride[4]] = static_cast<X>(stored);
      }
    });
  });
}

/// The score and the Sink that a file has for a layer are those that it may have.
///
/// Errors    SafetensorsError that names a tensor; what the policies say of their numbers
template <class File, class Part, class Check>
void check_saved_policies(const File& file, const std::string& name, const Part& part, const Check& check) {
  using Sink = std::remove_cvref_t<decltype(part.sink())>;
  constexpr bool trains = trains_its_score<Part>();
  each_saved<trains>(part.score(), part.sink(), check);
  const auto read = [&](const char* tensor, const auto& v, int) {
    if constexpr (!std::is_const_v<std::remove_pointer_t<decltype(v.data)>>)
      read_saved(file, saved_name(name, tensor), v);
  };
  Sink sink = part.sink();
  if constexpr (trains) {
    auto score = part.score();
    each_saved<true>(score, sink, read);
    check_policy(score, part.config().num_heads);
  } else {
    each_saved<false>(part.score(), sink, read);
  }
  static_cast<void>(sink.logits(part.config().num_heads));
}

}  // namespace detail

/// All that a part has learned as tensors of a file, which load_weights() reads: a MultiHeadAttention with its score
/// and Sink, a Linear, a FeedForward, a LayerNorm or an RmsNorm.
///
///   mha::SafetensorsWriter file;
///   mha::save_weights(file, "layers.0.self_attn", layer);       // layers.0.self_attn.q_proj.weight, …
///   mha::save_weights<mha::bfloat16>(file, "lm_head", linear);  // lm_head.weight, lm_head.bias, stored as bfloat16
///   file.write("model.safetensors");                            // the parts stay until here
///
/// Names     after that of the part and a dot, or alone if it is empty, those of LLaMA and PyTorch:
///           a layer's q_proj, k_proj, v_proj, o_proj, each .weight and .bias, q_norm.weight, k_norm.weight, gate,
///           sinks, score.0, score.1, …; a Linear's weight, bias, and gate.weight, gate.bias of Gated; a FeedForward's
///           gate_proj, up_proj, down_proj; a norm's weight, bias
/// Shapes    matrices (out, in), heads one below the other; what the part does not have is left out
/// Errors    those of add(), after which what was added before stays; ShapeError if there are no weights, or
///           drop_unpacked() or quantize() has left packed ones alone
template <class Stored = void, class Part>
void save_weights(SafetensorsWriter& file, const std::string& name, Part&& part) {
  static_assert(std::is_lvalue_reference_v<Part>,
                "mha: save_weights() of a temporary, whose weights would be gone before write() reads them: name it "
                "first (see mha/io/saved_weights.hpp)");
  const std::int64_t found = detail::saved_count(part.parameters());
  detail::require(
      found == part.parameter_count(), "save_weights: '", name, "' has ", found, " of its ", part.parameter_count(),
      " weights: call initialize, update or borrow first; drop_unpacked() and quantize() keep packed ones alone");
  using Owner = std::remove_cvref_t<Part>;
  const auto add = [&](const char* tensor, const auto& v, int rank) {
    if (v.data != nullptr) file.add_joined<Stored>(detail::saved_name(name, tensor), v, rank);
  };
  const auto add_copy = [&](const char* tensor, const auto& v, int rank) {  // the numbers of a score may be its members
    if (v.data == nullptr) return;
    using X = ScalarOf<decltype(v)>;
    const auto copy = std::make_shared<std::vector<X>>(v.data, v.data + v.extent[0]);
    file.add_joined<Stored>(detail::saved_name(name, tensor), view(copy->data(), v.extent[0]), rank, copy);
  };
  detail::each_saved(part.parameters(), add);
  if constexpr (detail::HasScoreAndSink<Owner>)
    detail::each_saved<detail::trains_its_score<Owner>()>(part.score(), part.sink(), add_copy);
}

/// Reads what save_weights() has stored under this name into a part of the same kind and sizes, which owns it from
/// then on. Scalars may be narrower in the file: a float part reads bfloat16 and half too, a double one float besides.
///
///   mha::load_weights(mha::Safetensors("model.safetensors"), "layers.0.self_attn", layer);
///
/// file      a Safetensors or a Checkpoint
/// Errors    SafetensorsError for a tensor that is missing, of another shape or dtype, or that the part does not have;
///           ShapeError if the part's weights are borrowed, or for numbers that its score or Sink may not have. Nothing
///           changes then
template <class File, class Part> void load_weights(const File& file, const std::string& name, Part& part) {
  const auto check = [&](const char* tensor, const auto& v, int rank) {
    using View = std::remove_cvref_t<decltype(v)>;
    const TensorView<const ScalarOf<View>, View::rank> read_only = v;
    detail::check_saved(file, detail::saved_name(name, tensor), read_only, rank);
  };
  const auto check_all = [&](const auto& weights) {
    detail::each_saved(weights, check);
    if constexpr (detail::HasScoreAndSink<Part>) detail::check_saved_policies(file, name, std::as_const(part), check);
  };
  const auto read = [&](const char* tensor, const auto& v, int) {
    if constexpr (!std::is_const_v<std::remove_pointer_t<decltype(v.data)>>)
      detail::read_saved(file, detail::saved_name(name, tensor), v);
  };
  // Of a part without weights only update() knows the shapes, and it leaves none if check_all throws.
  if (detail::saved_count(part.parameters()) == part.parameter_count()) check_all(part.parameters());
  part.update([&](auto& p) {
    check_all(p);
    detail::each_saved(p, read);
    if constexpr (requires { p.score; }) detail::each_saved<detail::trains_its_score<Part>()>(p.score, p.sink, read);
  });
}

}  // namespace mha::inline MHA_NAMESPACE
