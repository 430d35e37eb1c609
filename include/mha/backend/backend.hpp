// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "../cache/kv_source.hpp"
#include "../core/borrowed.hpp"
#include "../core/check.hpp"
#include "../core/items.hpp"
#include "../core/scalar.hpp"
#include "../core/tensor.hpp"
#include "../core/workspace.hpp"
#include "../policy/activation.hpp"
#include "../policy/dropout.hpp"
#include "../policy/mask.hpp"
#include "../policy/mask/positional.hpp"
#include "../policy/score.hpp"

namespace mha::inline MHA_NAMESPACE {

/// What forward leaves of its softmax rows for backward: each row's level and Σ exp(logit − level), from which weights
/// are computed again without error even where all logits are near −10⁹. Null data: not wanted.
///
/// Shapes    level, sum (B, Hq, Lq), ragged (Hq, ΣLq), row-major: reach them at AttendCall::row_state()
/// Units     a backend's own: it reads what it has written. A row that saw nothing has the level −∞ and the sum 0
template <class A> struct RowStates {
  A* level = nullptr;
  A* sum = nullptr;
};

/// One attention call as a backend gets it: checked, with its policies prepared.
///
/// Formula   out = softmax(score(scale · q kᵀ) where the mask allows) v, the sink a further term of the denominator,
///           each weight times dropout_factor() where dropout.exist()
/// Shapes    q (B, Lq, Hq, D)  kv: keys (B, Lk, Hkv, D), values (B, Lk, Hkv, Dv)  out (B, Lq, Hq, Dv)
///           log_sum_exp (B, Hq, Lq), null data if not wanted  sink (Hq), empty for none
///           of any KvSource, whose stored scalar has T's accumulator
/// Ragged    with q_offsets, q and out are (1, ΣLq, Hq, ·) and log_sum_exp (1, Hq, ΣLq): reach rows through query(),
///           output() and row_log_sum_exp(), lengths through queries(b) and keys(b), and every batch is served alike
/// Errors    none: it is checked where it is made
template <class T, class Source, class M, class S> struct AttendCall {
  using Scalar = T;

  TensorView<const T, 4> q;
  Source kv;
  M mask;
  S score;
  TensorView<T, 4> out;
  TensorView<Accumulator<T>, 3> log_sum_exp;
  CallShape shape;
  Index kv_heads = 0, head_dim = 0, value_dim = 0;
  Accumulator<T> scale{};
  Borrowed<float> sink{};
  const Index* q_offsets = nullptr;
  RowStates<Accumulator<T>> states{};
  DropoutDraws dropout{};

  /// The same call with keys and values from another source, and with other policies.
  template <class OtherSource, class OtherMask, class OtherScore>
  constexpr AttendCall<T, OtherSource, OtherMask, OtherScore> with(OtherSource source, OtherMask other_mask,
                                                                   OtherScore other_score) const {
    return {q,
            std::move(source),
            std::move(other_mask),
            std::move(other_score),
            out,
            log_sum_exp,
            shape,
            kv_heads,
            head_dim,
            value_dim,
            scale,
            sink,
            q_offsets,
            states,
            dropout};
  }

  /// The key/value head that query head h reads.
  MHA_HOST_DEVICE constexpr Index kv_head(Index h) const { return h / (shape.heads / kv_heads); }

  /// Lengths of sequence b.
  MHA_HOST_DEVICE constexpr Index queries(Index b) const {
    return q_offsets != nullptr ? q_offsets[b + 1] - q_offsets[b] : shape.queries;
  }
  MHA_UNCHECKED_CALLEE MHA_HOST_DEVICE constexpr Index keys(Index b) const { return kv.keys(b); }
  /// The first position from k on that the source still holds of sequence b: a loop over keys goes on from there.
  MHA_HOST_DEVICE constexpr Index held(Index b, Index k) const { return detail::held(kv, b, k); }
  /// The absolute position of query row i of sequence b.
  MHA_HOST_DEVICE constexpr Index position(Index b, Index i) const { return shape.origin[b] + i; }

  /// Row i of sequence b: query h (D) at strides q.stride, output h (Dv) at strides out.stride.
  MHA_HOST_DEVICE constexpr const T* query(Index b, Index i, Index h) const {
    return q_offsets != nullptr ? q.pointer(0, q_offsets[b] + i, h, 0) : q.pointer(b, i, h, 0);
  }
  MHA_HOST_DEVICE constexpr T* output(Index b, Index i, Index h) const {
    return q_offsets != nullptr ? out.pointer(0, q_offsets[b] + i, h, 0) : out.pointer(b, i, h, 0);
  }
  MHA_HOST_DEVICE constexpr Accumulator<T>& row_log_sum_exp(Index b, Index h, Index i) const {
    return q_offsets != nullptr ? log_sum_exp(0, h, q_offsets[b] + i) : log_sum_exp(b, h, i);
  }
  /// What dropout multiplies the weight of query row i and key k by; the row's denominator is of all weights.
  MHA_HOST_DEVICE constexpr double dropout_factor(Index b, Index h, Index i, Index k) const {
    return dropout.factor(detail::dropout_row(shape, b, h), position(b, i), k);
  }
  /// Where the state of row i of query head h lies.
  MHA_HOST_DEVICE constexpr std::ptrdiff_t row_state(Index b, Index h, Index i) const {
    return q_offsets != nullptr ? std::ptrdiff_t{h} * q.length() + q_offsets[b] + i
                                : (std::ptrdiff_t{b} * shape.heads + h) * q.length() + i;
  }
};

/// c = a · b + bias.
///
/// Shapes    a (M, K)  b (K, N)  bias (N), null data for none  c (M, N); any strides
template <class T> struct GemmCall {
  TensorView<const T, 2> a, b;
  TensorView<const T, 1> bias;
  TensorView<T, 2> c;
};

/// One matrix of a layer with its bias, as a backend packs it.
///
/// Shapes    matrix (K, N), any strides  bias (N), null data for none
template <class T> struct DenseWeights {
  TensorView<const T, 2> matrix;
  TensorView<const T, 1> bias;
};

/// c[i] = a · matrix + bias for parts first, first + 1, … of weights that the backend packed.
///
/// Shapes    a (M, K), the K of each of these parts  c[i] (M, N of part first + i); any strides
template <class T, class Packed> struct PackedGemmCall {
  TensorView<const T, 2> a;
  const Packed& weights;
  Index first = 0;
  std::span<const TensorView<T, 2>> c;
};

/// What is done to the sums of a product by packed weights before they are rounded and stored.
///
/// Formula   c = activation(a · matrix + bias) + residual
///           with Gated<F>, of parts first, the gate, and first + 1: c = F(a · gate + its bias) ∘ (a · matrix + bias) +
///           residual
/// Shapes    c has one view (M, N)  residual (M, N), null data for none; it may be c
template <class T, class Activation = Identity> struct Epilogue {
  Activation activation;
  TensorView<const T, 2> residual{};
};

/// The sizes of a call that explain() is asked about.
struct AttendPlan {
  CallShape shape;
  Index kv_heads = 0, head_dim = 0, value_dim = 0;
  bool drops = false;  ///< whether weights are dropped
};

/// Whether this machine can run a backend, and if not why.
struct Support {
  bool ok = true;
  std::string reason;
};

/// A machine that attention runs on, as a value: a layer holds one, and a call may be given one. What a value names,
/// such as threads or a device, is shared by its copies; a type without a default constructor has to be given. The
/// layer and attention() are written once against these members:
///   static constexpr const char* name
///   using Workspace                        scratch of its memory, kept from call to call
///   Support supported() const
///   void gemm(const GemmCall<T>&, Workspace&) const
///   void attend(const AttendCall<T, …>&, Workspace&) const
///   std::string explain<T>(const AttendPlan&) const       or <T, Stored>, the scalar that keys are stored in
/// Optional, both of:
///   auto pack(std::span<const DenseWeights<T>>) const     movable, owns its memory, tells `size_t bytes() const`
///   void gemm(const PackedGemmCall<T, Packed>&, Workspace&) const
/// A layer packs its matrices once, of whatever K each; the parts of one call share theirs. If it takes rows of float
/// by weights packed of half or bfloat16, a layer keeps borrowed ones so. With both, optional too:
///   void gemm(const PackedGemmCall<T, Packed>&, const Epilogue<T, Activation>&, Workspace&) const
///   void unpack(const Packed&, Index part, const TensorView<T, 2>&) const   a matrix of it, as the backward pass reads
///                                                      it of a layer that has packed weights only
/// Optional: `void weights(const AttendCall&, TensorView<Accumulator<T>, 4>, Workspace&) const`, the materialised
/// softmax before any is dropped, over 0 in the host's memory and over anything in another (backend/weights.hpp has it
/// as items); `void for_each_item(const Items&, Workspace&) const` (core/items.hpp), else a plain loop runs them; `void
/// normalize(const NormCall<T>&, Workspace&) const`, else backend/norm.hpp's items; `static constexpr bool side_by_side
/// = true`: results of one PackedGemmCall lie beside each other in every row; `void attend_backward(const
/// AttendBackwardCall<T, …>&, Workspace&) const`, gradients (backend/backward.hpp): attend() then writes
/// AttendCall::states where they are wanted, or attend_recorded(), where there is one, in its place; and `void
/// require_backward(const char* call, const CallShape&) const` throws for one that is too large; `static constexpr
/// bool drops = true`: attend() and attend_backward() drop what AttendCall::dropout says, else calls with a DropoutSeed
/// are refused. A backend whose memory the host does not reach says `static constexpr Memory memory = Memory::device`
/// and has all of:
///   template <class T, int Rank> using Tensor          what calls return
///   const Index* stage(const Index*, Index n, Frame&, Workspace&) const   a copy of the host's numbers for one call
///   auto upload(std::span<const T>) const              a copy that is kept: movable, `const T* data() const`
///   void download(const T*, std::span<T>, Workspace&) const   a copy on the host of n numbers, waited for: what a
///                                                      KvCache saves
///   template <class P> auto keep(const P&) const       a policy that a layer owns, its data in the backend's memory
///   void require_reachable(const char* call, const char* tensor, const void*) const
/// and `for_each_item`, pack() and its gemm(); if it likes, `auto enter() const` and `auto enter(Workspace&) const`,
/// what a call holds while it takes memory, and checks of its workspace; `void send(const Index*, Index n, Index* to,
/// Workspace&) const`, a copy of the host's numbers to memory of its own: a KvCache sends a step's numbers once for the
/// layers' calls whose workspace has the same stream(), or of which none has one, and stage() copies them for the
/// others; then too `void require_sendable(Workspace&) const`, which throws what send() and download() would, before a
/// step, or a pass whose sums go to the host, does anything. take_host() of its Workspace's frames gives memory of the
/// host. With attend_backward(), the product of gemm_sum.hpp and, for norms, `void normalize_backward(const
/// NormBackwardCall<A>&, NormRowFacts<A>*, Workspace&) const` (norm_backward.hpp) layers and blocks have their backward
/// pass there. tests/support/plain_backend.hpp is a whole one in a hundred lines.
template <class B>
concept Backend = requires(const B backend, typename B::Workspace& workspace, const GemmCall<float>& gemm,
                           const AttendCall<float, ContiguousKv<float>, Full, NoScore>& call, const AttendPlan& plan) {
  { B::name } -> std::convertible_to<const char*>;
  { backend.supported() } -> std::same_as<Support>;
  backend.gemm(gemm, workspace);
  backend.attend(call, workspace);
  { backend.template explain<float>(plan) } -> std::convertible_to<std::string>;
};

namespace detail {

template <class E>
concept BackendArgument = Backend<std::remove_cvref_t<E>>;

template <class B> constexpr Memory memory_of = Memory::host;
template <class B>
requires requires { B::memory; }
constexpr Memory memory_of<B> = B::memory;
template <class B> constexpr bool computes_on_host = memory_of<B> == Memory::host;

template <class B> constexpr bool drops_weights = false;
template <class B>
requires requires { B::drops; }
constexpr bool drops_weights<B> = B::drops;

/// Whether it sums the gradients of a score's own numbers itself: see ScoreGradientsTo of backend/backward.hpp.
template <class B> constexpr bool sums_scores = false;
template <class B>
requires requires { B::sums_scores; }
constexpr bool sums_scores<B> = B::sums_scores;
/// Whether gradients of scores and biases are computed on the backend: by itself, or where the host adds them up.
template <class B> constexpr bool has_score_gradients = computes_on_host<B> || sums_scores<B>;

template <class B> struct TensorsOf { template <class T, int Rank> using Tensor = mha::Tensor<T, Rank>; };
template <class B>
requires(!computes_on_host<B>) struct TensorsOf<B> {
  template <class T, int Rank> using Tensor = typename B::template Tensor<T, Rank>;
};
/// An owning tensor in the backend's memory.
template <class B, class T, int Rank> using TensorOf = typename TensorsOf<B>::template Tensor<T, Rank>;
/// What a call on the backend returns for an input of this type.
template <class B, class Owner> using ResultOn = ResultOf<Owner, TensorsOf<B>::template Tensor>;

struct NothingHeld {};
/// What a call holds while it takes memory and computes: on a device that the backend names, that it is current.
template <class B, class... Workspace> auto entered(const B& backend, Workspace&... workspace) {
  if constexpr (requires { backend.enter(workspace...); })
    return backend.enter(workspace...);
  else
    return NothingHeld{};
}

/// Runs items on the backend.
template <class B> struct ItemsOn {
  const B& backend;
  typename B::Workspace& workspace;
  template <Items I> void operator()(const I& items) const {
    if constexpr (requires { backend.for_each_item(items, workspace); })
      backend.for_each_item(items, workspace);
    else
      run_serially(items);
  }
};

/// Errors    std::runtime_error that says why this machine cannot run the backend
template <class B> void require_supported(const B& backend, const char* call) {
  const Support support = backend.supported();
  if (!support.ok)
    throw_error(std::runtime_error(std::string(call) + ": " + B::name + " cannot run here: " + support.reason));
}

/// Throws where the workspace's stream takes no numbers of the host's and gives it none, such as one that is being
/// recorded: asked before anything is enqueued.
template <class B> void require_sendable(const B& backend, typename B::Workspace& workspace) {
  if constexpr (requires { backend.require_sendable(workspace); }) backend.require_sendable(workspace);
}

/// The tensor's memory is one that the backend's machine reaches, where that can be told.
template <class B, class View>
void require_reachable(const B& backend, const char* call, const char* name, const View& v) {
  if constexpr (!computes_on_host<B>)
    if (v.data != nullptr && v.size() > 0) backend.require_reachable(call, name, v.data);
}

/// The same for the keys and values of a source that shows where they are.
template <class B, class S> void require_source_reachable(const B& backend, const char* call, const S& source) {
  if constexpr (requires {
                  source.key.data;
                  source.value.data;
                }) {
    require_reachable(backend, call, "the source's key", source.key);
    require_reachable(backend, call, "the source's value", source.value);
  }
}

}  // namespace detail

/// A backend that multiplies by weights it packed once.
template <class B, class T>
concept PacksWeights = requires(const B backend, std::span<const DenseWeights<T>> parts) {
  { backend.pack(parts).bytes() } -> std::convertible_to<std::size_t>;
};

namespace detail {

/// What a backend that packs weights makes of them, else void.
template <class T, class B> struct PackedBy { using type = void; };
template <class T, PacksWeights<T> B> struct PackedBy<T, B> {
  using type = std::remove_cvref_t<decltype(std::declval<const B&>().pack(std::span<const DenseWeights<T>>()))>;
};

}  // namespace detail

/// One that packs other weights into the memory of those that it packed before: false, and nothing is written, if they
/// have other shapes.
template <class B, class T>
concept PacksInto = PacksWeights<B, T> &&
    requires(const B backend, typename detail::PackedBy<T, B>::type& packed, std::span<const DenseWeights<T>> parts) {
  { backend.pack_into(packed, parts) } -> std::same_as<bool>;
};

/// One that multiplies rows of T by weights packed of W, which it converts as it reads them.
template <class B, class T, class W>
concept WidensWeights = PacksWeights<B, W> &&
    requires(const B backend, const PackedGemmCall<T, typename detail::PackedBy<W, B>::type>& call,
             typename B::Workspace& workspace) {
  backend.gemm(call, workspace);
};

namespace detail {

/// What a backend that rounds weights of W to Q makes of them.
template <class Q, class W, class B>
using QuantizedBy =
    std::remove_cvref_t<decltype(std::declval<const B&>().template quantize<Q>(std::span<const DenseWeights<W>>()))>;

}  // namespace detail

/// One that multiplies rows of T by weights of W which it rounded to Q, scaled_int8 or scaled_int4.
template <class B, class T, class W, class Q = scaled_int8>
concept QuantizesWeights = requires(const B backend, const PackedGemmCall<T, detail::QuantizedBy<Q, W, B>>& call,
                                    typename B::Workspace& workspace) {
  backend.gemm(call, workspace);
};

/// One that writes a matrix that it packed of W as rows of T again.
template <class B, class T, class W>
concept UnpacksWeights = PacksWeights<B, W> &&
    requires(const B backend, const typename detail::PackedBy<W, B>::type& packed, const TensorView<T, 2>& to) {
  backend.unpack(packed, Index{}, to);
};

/// One that also applies an epilogue before it stores the results. Such a gemm() may return false, and compute nothing,
/// where it cannot for this call: Linear applies it then to results that are stored.
template <class B, class T, class Activation>
concept FusesEpilogue = PacksWeights<B, T> &&
    requires(const B backend, const PackedGemmCall<T, typename detail::PackedBy<T, B>::type>& call,
             const Epilogue<T, Activation>& epilogue, typename B::Workspace& workspace) {
  backend.gemm(call, epilogue, workspace);
};

}  // namespace mha::inline MHA_NAMESPACE
