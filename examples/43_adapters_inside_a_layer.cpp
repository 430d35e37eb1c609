// SPDX-License-Identifier: Apache-2.0
// 43: low-rank adapters inside a layer
//
// You learn   to build a layer from its parts, so that W_Q and W_V, which are frozen, get adapters (LoRA); to train
//             these, to go on token by token with them, and to merge them into a layer
// The maths   Q = rot(X (W_Q + A_Q B_Q)), K = rot(X W_K), V = X (W_V + A_V B_V), Y = attention(Q, K, V) W_O
//             The loss is ½ ‖Y − T‖². With dW, the gradient that a trained W_Q would have: dA = dW Bᵀ, dB = Aᵀ dW
// Symbols     L = 24 tokens, E = 64 model width, 8 heads of D = 8, which share 2 heads of keys, R = 4 the rank
//             X, Y, T (L, E)  W_Q (E, 64)  W_K, W_V (E, 16)  A (E, R)  B (R, 64), (R, 16)
// Output      lines that end in "yes"
// Source      Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", §4.1
// Next        models/, whole models
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <Eigen/Core>

#include <mha/block.hpp>
#include <mha/mha.hpp>

using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
constexpr int L = 24, E = 64, H = 8, G = 2, D = E / H, R = 4;
using Layer = mha::MultiHeadAttention<float, mha::Cpu, mha::GroupedQuery<G>, mha::Causal, mha::Rotary<mha::Halves>>;

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}
bool near(const Rows& a, const Rows& b) { return (a - b).norm() < 1e-5f * b.norm(); }
auto map(const mha::TensorView<const float, 2>& m) { return Eigen::Map<const Rows>(m.data, m.extent[0], m.extent[1]); }
// Rows (n, heads · D) as (1, n, heads, D).
auto heads(Rows& x) { return mha::view(x.data(), 1, int(x.rows()), int(x.cols()) / D, D); }

// x W + x A B. W may be in 16, 8 or 4 bits too: borrow or quantize it. Then the adapter belongs to the rounded W, and
// not to the one in float that it is merged with below.
struct Adapted {
  mha::Linear<float> frozen, down, up;
  decltype(down.tape()) frozen_tape = frozen.tape(), down_tape = down.tape(), up_tape = up.tape();
  decltype(down.gradients()) of_down = down.gradients(), of_up = up.gradients();
  Rows low;

  Adapted(int outputs, const mha::TensorView<const float, 2>& w, std::uint64_t seed)
      : frozen({.inputs = E, .outputs = outputs, .bias = false}),
        down({.inputs = E, .outputs = R, .bias = false}),
        up({.inputs = R, .outputs = outputs, .bias = false}) {
    frozen.borrow({.weight = w});
    down.initialize(mha::XavierUniform{.seed = seed});
    up.update([](auto&) {});  // B = 0: at first the adapter changes nothing
  }
  Rows operator()(const Rows& x) const {
    const Rows y = frozen(x);
    return up(down(x), mha::residual(y));
  }
  Rows record(const Rows& x) {  // x and low stay until the backward pass
    const Rows y = frozen(x, frozen_tape);
    low = down(x, down_tape);
    return up(low, up_tape, mha::residual(y));
  }
  void backward(const Rows& dy, Rows& dx) {
    frozen.backward(dy, frozen_tape, mha::add_to(dx));  // no gradients of W
    down.backward(up.backward(dy, up_tape, of_up), down_tape, of_down, mha::add_to(dx));
  }
  Rows a() const { return map(down.parameters().weight); }
  Rows b() const { return map(up.parameters().weight); }
};

int main() {
  Layer base({.d_model = E, .num_heads = H});
  base.initialize(mha::XavierUniform{.seed = 1});
  const auto w = base.parameters();
  Adapted query(E, w.query.matrix(), 2), value(G * D, w.value.matrix(), 3);
  mha::Linear<float> key({.inputs = E, .outputs = G * D, .bias = false}),
      out({.inputs = E, .outputs = E, .bias = false});
  key.borrow({.weight = w.key.matrix()});
  out.borrow({.weight = w.output.weight});
  const mha::Rotary<mha::Halves> rotary;
  Rows x(L, E);
  for (int i = 0; i < L; ++i)
    for (int e = 0; e < E; ++e) x(i, e) = std::sin(0.3f * float((i + 1) * (i + 3) * (e + 2) * (e + 2) % 997));

  // What is sought: the layer with other W_Q and W_V, whose differences have rank R.
  const auto with = [&](const Rows& more_query, const Rows& more_value) {
    Layer layer({.d_model = E, .num_heads = H});
    const Rows wq = map(w.query.matrix()) + more_query, wv = map(w.value.matrix()) + more_value;
    layer.update([&](auto& p) {
      p.query = wq;
      p.key = w.key.matrix();
      p.value = wv;
      p.output = w.output.weight;
    });
    return layer;
  };
  Adapted other_query(E, w.query.matrix(), 4), other_value(G * D, w.value.matrix(), 5);
  for (Adapted* adapted : {&other_query, &other_value}) adapted->up.initialize(mha::XavierUniform{.seed = 6});
  const Rows target = with(other_query.a() * other_query.b(), other_value.a() * other_value.b())(x);

  // The layer part by part, with a tape for each, and its backward pass.
  auto key_tape = key.tape(), out_tape = out.tape();
  mha::AttentionTape<float> tape;
  Rows q, k, v, o(L, E);
  const auto forward = [&] {
    q = query.record(x), k = key(x, key_tape), v = value.record(x);
    rotary.apply(heads(q), mha::Origins(0));
    rotary.apply(heads(k), mha::Origins(0));
    mha::attention_into(heads(o), heads(q), heads(k), heads(v), mha::Causal{}, mha::record(tape));
    return Rows(out(o, out_tape));
  };
  const auto backward = [&](const Rows& dy) {
    Rows d_o = out.backward(dy, out_tape), dq(L, E), dk(L, G * D), dv(L, G * D), dx = Rows::Zero(L, E);
    mha::attention_backward_into({heads(dq), heads(dk), heads(dv)}, heads(d_o), heads(q), heads(k), heads(v), heads(o),
                                 tape, mha::Causal{});
    rotary.apply_back(heads(dq), mha::Origins(0));
    rotary.apply_back(heads(dk), mha::Origins(0));
    query.backward(dq, dx);
    key.backward(dk, key_tape, mha::add_to(dx));
    value.backward(dv, dx);
    return dx;
  };
  check("at first the parts give the layer's result", near(forward(), base(x)));

  const auto descend = [](auto& part, auto& gradients) {
    part.update([&](auto& p) {
      p.for_each(gradients, [](auto numbers, auto of_numbers) {
        for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] -= 0.003f * of_numbers[i];
      });
    });
    gradients.clear();
  };
  float before = 0, after = 0;
  for (int step = 0; step <= 300; ++step) {
    const Rows dy = forward() - target;
    (step == 0 ? before : after) = dy.norm() / target.norm();
    backward(dy);
    for (Adapted* adapted : {&query, &value}) {
      descend(adapted->down, adapted->of_down);
      descend(adapted->up, adapted->of_up);
    }
  }
  check("the adapters learn", before > 0.5f && after < 0.2f);

  // Merged into a layer they cost nothing. A trained W has the gradients dW, of which the adapters' are products.
  Layer merged = with(query.a() * query.b(), value.a() * value.b());
  const Rows y = forward();
  auto layer_tape = merged.tape();
  auto of_layer = merged.gradients();
  check("a layer with the merged matrices has their result", near(y, merged(x, layer_tape)));
  const Rows dx = merged.backward(y, layer_tape, of_layer);
  bool same = near(backward(y), dx);
  const auto compare = [&](const Adapted& adapted, const Rows& dw) {
    same = same && near(map(adapted.of_down.weight), dw * adapted.b().transpose()) &&
           near(map(adapted.of_up.weight), adapted.a().transpose() * dw);
  };
  compare(query, map(of_layer.query.matrix()));
  compare(value, map(of_layer.value.matrix()));
  check("and the same gradients of X, A and B", same);

  // Token by token: the rows of keys and values go to a cache.
  mha::KvCache<mha::Contiguous, float> cache({.heads = G, .dim = D, .value_dim = D}, {.length = L}, {});
  const mha::SequenceId text = cache.add();
  Rows one_by_one(L, E);
  for (int i = 0; i < L; ++i) {
    const Rows row = x.row(i);
    Rows q1 = query(row), k1 = key(row), v1 = value(row), o1(1, E);
    rotary.apply(heads(q1), mha::Origins(i));
    rotary.apply(heads(k1), mha::Origins(i));
    auto step = cache.step(text, 1);
    step.append(0, heads(k1), heads(v1));
    mha::attention_into(heads(o1), heads(q1), step.source(0), mha::Causal{});
    step.commit();
    one_by_one.row(i) = Rows(out(o1));
  }
  check("token by token through a cache the rows are the same", near(one_by_one, y));

  std::printf("\nthe error went from %.1f to %.1f %%; the adapters are %d numbers, W_Q and W_V %d\n",
              100 * double(before), 100 * double(after), R * (2 * E + E + G * D), E * (E + G * D));
  return failures == 0 ? 0 : 1;
}
