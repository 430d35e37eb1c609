// SPDX-License-Identifier: Apache-2.0
// Memory is O(L), and a workspace makes later calls allocate nothing: counted by replacing operator new.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include <mha/backend/eigen/eigen_cpu.hpp>
#include <mha/block.hpp>
#include <mha/systolic.hpp>

#include "law.hpp"

namespace {

std::atomic<bool> counting{false};
std::atomic<std::size_t> allocations{0}, allocated{0}, largest{0};

void* counted(std::size_t size, std::size_t align) {
  if (counting.load(std::memory_order_relaxed)) {
    ++allocations;
    allocated += size;
    std::size_t seen = largest.load();
    while (size > seen && !largest.compare_exchange_weak(seen, size)) {
    }
  }
  void* const p = align <= alignof(std::max_align_t) ? std::malloc(size == 0 ? 1 : size)
                                                     : std::aligned_alloc(align, (size + align - 1) / align * align);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

/// Out of line, or the compiler takes free() after operator new for a mistake.
[[gnu::noinline]] void release(void* p) noexcept { std::free(p); }

/// What f() allocated, in bytes and calls, on all threads.
struct Counted {
  std::size_t calls, bytes, largest;
};
template <class F> Counted count(F&& f) {
  allocations = allocated = largest = 0;
  counting = true;
  f();
  counting = false;
  return {allocations, allocated, largest};
}

}  // namespace

void* operator new(std::size_t n) { return counted(n, 1); }
void* operator new[](std::size_t n) { return counted(n, 1); }
void* operator new(std::size_t n, std::align_val_t a) { return counted(n, static_cast<std::size_t>(a)); }
void* operator new[](std::size_t n, std::align_val_t a) { return counted(n, static_cast<std::size_t>(a)); }
void operator delete(void* p) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, std::size_t) noexcept { release(p); }
void operator delete[](void* p, std::size_t) noexcept { release(p); }
void operator delete(void* p, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, std::align_val_t) noexcept { release(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { release(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { release(p); }

namespace {

using laws::Index;
using laws::Inputs;

/// Everything allocated by one call, the result included, over keys and queries of this length.
template <class B, class T, class... Policies> std::size_t bytes_of_a_call(Index length, const Policies&... policies) {
  support::Random random("memory");
  const Inputs<T> in(
      {.batch = 1, .heads = 1, .kv_heads = 1, .queries = length, .keys = length, .head_dim = 8, .value_dim = 8},
      random);
  static_cast<void>(mha::attention<B>(in.q, in.k, in.v, policies...));  // threads start at the first call
  return count([&] { static_cast<void>(mha::attention<B>(in.q, in.k, in.v, policies...)); }).bytes;
}

template <class T> class Memory : public testing::Test {};
using Scalars = testing::Types<float, double, mha::half, mha::bfloat16>;
TYPED_TEST_SUITE(Memory, Scalars);

TYPED_TEST(Memory, GrowsWithTheLengthAndNotWithItsSquare) {
  const auto expect_linear = [](const auto&... policies) {
    const std::size_t small = bytes_of_a_call<mha::Cpu, TypeParam>(512, policies...);
    const std::size_t big = bytes_of_a_call<mha::Cpu, TypeParam>(2048, policies...);
    EXPECT_GT(small, 0u);
    EXPECT_LE(big, 4 * small) << "512 rows took " << small << " bytes";
    EXPECT_LT(big, 2048u * 2048u * sizeof(TypeParam) / 8);
  };
  expect_linear();
  expect_linear(mha::Causal{}, mha::Alibi{});
  expect_linear(laws::Strided{});
}

/// What a call on a tape and its backward pass into gradients that are there take: the workspaces that have grown to
/// what they need, and the tape, or whatever else is allocated beside it.
template <class B, class T, class... Policies>
std::size_t bytes_of_a_backward_pass(Index length, const Policies&... policies) {
  support::Random random("memory of gradients");
  const Inputs<T> in(
      {.batch = 1, .heads = 2, .kv_heads = 1, .queries = length, .keys = length, .head_dim = 16, .value_dim = 16},
      random);
  mha::Tensor<T, 4> out(1, length, 2, 16), d_out = in.q, dq = in.q, dk = in.k, dv = in.v;
  typename B::Workspace workspace, of_gradients;
  const auto pass = [&] {
    mha::AttentionTape<T, B> tape;
    mha::attention_into<B>(out, in.q, in.k, in.v, policies..., mha::record(tape), workspace);
    mha::attention_backward_into({dq, dk, dv}, d_out, in.q, in.k, in.v, out, tape, policies..., of_gradients);
  };
  pass();
  return count(pass).bytes + workspace.bytes() + of_gradients.bytes();
}

TYPED_TEST(Memory, OfGradientsGrowsWithTheLengthAndNotWithItsSquare) {
  using SerialArray = mha::Systolic<mha::AmxArray, mha::DefaultPrecision, mha::Serial>;
  using T = TypeParam;
  const auto expect_linear = [](const auto& backend, const auto&... policies) {
    using B = std::remove_cvref_t<decltype(backend)>;
    std::size_t before = bytes_of_a_backward_pass<B, T>(512, policies...);
    EXPECT_GT(before, 512u);
    for (const Index length : {1024, 2048}) {
      const std::size_t bytes = bytes_of_a_backward_pass<B, T>(length, policies...);
      // A byte for every pair of 2048 rows would be more.
      EXPECT_LE(static_cast<double>(bytes), 2.1 * static_cast<double>(before)) << length << " rows";
      before = bytes;
    }
  };
  expect_linear(laws::SerialCpu{});
  expect_linear(laws::SerialCpu{}, mha::Causal{}, mha::Dropout{.p = 0.1f}, mha::DropoutSeed{1});
  if constexpr (!std::is_same_v<T, double>) expect_linear(SerialArray{}, mha::Causal{});
}

template <class B, class T> void expect_no_allocation_in_a_second_call() {
  support::Random random("no allocation");
  const Inputs<T> in({.batch = 2, .heads = 4, .kv_heads = 2, .queries = 160, .keys = 160, .head_dim = 16}, random);
  mha::Tensor<T, 4> out(2, 160, 4, in.v.extent(3));
  mha::Workspace workspace;
  const auto call = [&] {
    mha::attention_into<B>(out, in.q, in.k, in.v, mha::Causal{}, mha::SoftCap{.cap = 3}, workspace);
  };
  call();
  const int before = workspace.allocations();
  const Counted second = count(call);
  EXPECT_EQ(second.calls, 0u) << second.bytes << " bytes";
  EXPECT_EQ(workspace.allocations(), before);
  EXPECT_GT(count([&] { mha::attention_into<B>(out, in.q, in.k, in.v, mha::Causal{}); }).calls, 0u)
      << "nothing is counted";
}

TYPED_TEST(Memory, SecondCallAllocatesNothing) { expect_no_allocation_in_a_second_call<mha::Cpu, TypeParam>(); }
TYPED_TEST(Memory, SecondCallByEigenAllocatesNothing) {
  expect_no_allocation_in_a_second_call<mha::EigenCpu, TypeParam>();
}

template <class Layer, class... Values> void expect_no_second_allocation(const Values&... values) {
  using T = typename Layer::Scalar;
  Layer layer({.d_model = 32, .num_heads = 4, .bias = true}, values...);
  layer.initialize(mha::XavierUniform{.seed = 5});
  support::Random random("layer without allocation");
  mha::Tensor<T, 3> x(2, 40, 32), y(2, 40, 32);
  random.fill(x);
  mha::Workspace workspace;
  const auto call = [&] { layer(x, mha::into(y), workspace); };
  call();
  const int before = workspace.allocations();
  const Counted second = count(call);
  EXPECT_EQ(second.calls, 0u) << second.bytes << " bytes";
  EXPECT_EQ(workspace.allocations(), before);
  // Nor do calls of another shape, once there was one.
  mha::Tensor<T, 3> step(2, 1, 32), to(2, 1, 32);
  layer(step, mha::into(to), workspace);
  const auto both = [&] {
    layer(step, mha::into(to), workspace);
    call();
  };
  EXPECT_EQ(count(both).calls, 0u);
}

TYPED_TEST(Memory, LayerWithAWorkspaceAllocatesNothingTheSecondTime) {
  using T = TypeParam;
  expect_no_second_allocation<mha::MultiHeadAttention<T, mha::Cpu, mha::GroupedQuery<2>, mha::Causal>>();
  expect_no_second_allocation<mha::MultiHeadAttention<T, mha::Cpu, mha::Rotary<>, mha::QkNorm, mha::GatedHeads>>();
  // A table of distances, which a call makes of the buckets'.
  using Bias = mha::Chain<mha::SoftCap, mha::RelativeBias>;
  const mha::RelativeBias bias(std::vector<float>(32 * 4, 0.5f));
  expect_no_second_allocation<mha::MultiHeadAttention<T, mha::Cpu, Bias>>(Bias{mha::SoftCap{.cap = 3}, bias});
}

/// Tokens one after another, of which the first may allocate, behind `before` that came another way; on all threads.
template <class L, class Storage, class... Policies>
void expect_no_allocation_after_the_first_token(const Storage& storage, int tokens, Index before,
                                                const Policies&... policies) {
  using T = typename L::Scalar;
  using B = std::remove_cvref_t<decltype(std::declval<const L&>().backend())>;
  SCOPED_TRACE(mha::detail::in_words(storage));
  const mha::ThreadPool pool(3);
  pool.run(100, [](Index, Index) {});  // its threads start
  // Wide enough for several workers from some token on.
  L layer({.d_model = 16, .num_heads = 32, .num_kv_heads = 2, .head_dim = 128}, B(pool), policies...);
  layer.initialize(mha::XavierUniform{.seed = 3});
  auto cache = mha::make_cache(layer, storage);
  cache.add();
  support::Random random("tokens without allocation");
  mha::Tensor<T, 3> all(before, 2, 128), x(1, 1, 16), y(1, 1, 16);
  random.fill(all);
  random.fill(x);
  Index most = before;
  if constexpr (std::is_same_v<Storage, mha::Ring>) most = storage.rows;
  for (Index n = 0, count; n < before; n += count) {
    count = std::min(most, before - n);
    auto step = cache.step(count);
    const auto rows = mha::view(&std::as_const(all)(n, 0, 0), count, 2, 128);
    step.append(0, rows, rows);
    step.commit();
  }
  mha::Workspace workspace;
  const auto token = [&] { layer.step(x, cache, mha::into(y), workspace); };
  token();
  const int allocations_before = workspace.allocations();
  const Counted later = count([&] {
    for (int i = 1; i < tokens; ++i) token();
  });
  EXPECT_EQ(later.calls, 0u) << later.bytes << " bytes";
  EXPECT_EQ(workspace.allocations(), allocations_before);
}

template <class T>
using SystolicDecoder =
    mha::MultiHeadAttention<T, mha::Systolic<>, mha::GroupedQuery<mha::Dynamic>, mha::SlidingWindow>;

TEST(Decoding, AllocatesNothingAfterTheFirstTokenOnSystolic) {
  constexpr Index chunk = mha::detail::simd::key_chunk;
  const auto check = [](const auto& storage, int tokens, Index before) {
    expect_no_allocation_after_the_first_token<SystolicDecoder<mha::bfloat16>>(storage, tokens, before,
                                                                               mha::SlidingWindow{.left = 299});
  };
  check(mha::Contiguous{.length = 640}, 640, 0);
  check(mha::Contiguous{.length = chunk + 20}, 40, chunk - 20);
  check(mha::Contiguous{.length = 2 * chunk + 20}, 40, 2 * chunk - 20);
  for (const Index page : {16, 64}) check(mha::Paged{.pages = 640 / page, .length = 640, .page = page}, 240, 400);
  check(mha::Ring{.left = 699}, 200, 600);
  check(mha::Ring{.left = 680, .rows = 20, .first = 5}, 800, 0);
}

// Its keys and values are kept in bfloat16 beside its rows.
TEST(Decoding, AllocatesNothingAfterTheFirstFloatTokenOnSystolic) {
  const auto check = [](const auto& storage, int tokens, Index before) {
    expect_no_allocation_after_the_first_token<SystolicDecoder<float>>(storage, tokens, before,
                                                                       mha::SlidingWindow{.left = 299});
  };
  check(mha::Paged{.pages = 10, .length = 640, .page = 64}, 240, 400);
  check(mha::Ring{.left = 680, .rows = 20, .first = 5}, 200, 600);
}

// Where threads begin to help, keys become several chunks, and a score's table grows with the distances.
TYPED_TEST(Memory, DecodingAllocatesNothingAfterTheFirstToken) {
  constexpr Index chunk = mha::detail::simd::key_chunk;
  const auto check = [](const auto& storage, int tokens, Index before) {
    const std::vector<float> table(32 * 8, 0.25f);
    expect_no_allocation_after_the_first_token<
        mha::MultiHeadAttention<TypeParam, mha::Cpu, mha::GroupedQuery<mha::Dynamic>, mha::Causal, mha::RelativeBias>>(
        storage, tokens, before, mha::RelativeBias(table, {.count = 8, .max_distance = 70, .bidirectional = false}));
  };
  check(mha::Contiguous{.length = 300}, 300, 0);
  check(mha::Contiguous{.length = chunk + 4}, 8, chunk - 4);
  check(mha::Contiguous{.length = 2 * chunk + 4}, 8, 2 * chunk - 4);
  check(mha::Contiguous{.length = 2 * chunk + 4}, 300, 0);
  check(mha::Paged{.pages = 65, .length = chunk + 64, .page = 64}, 8, chunk - 4);
  expect_no_allocation_after_the_first_token<
      mha::MultiHeadAttention<TypeParam, mha::Cpu, mha::GroupedQuery<mha::Dynamic>, mha::SlidingWindow>>(
      mha::Ring{.left = 2 * chunk, .rows = 20, .first = 5}, 40, 2 * chunk, mha::SlidingWindow{.left = 2 * chunk});
}

// Where the longest sequence has all it may have, threads share ever more chunks of the others.
template <class T, class B> void expect_no_allocation_beside_a_full_sequence() {
  constexpr Index chunk = mha::detail::simd::key_chunk, full = 2 * chunk;
  const mha::ThreadPool pool(3);
  pool.run(100, [](Index, Index) {});  // its threads start
  mha::MultiHeadAttention<T, B, mha::GroupedQuery<mha::Dynamic>, mha::Causal> layer(
      {.d_model = 16, .num_heads = 32, .num_kv_heads = 2, .head_dim = 64}, B(pool));
  layer.initialize(mha::XavierUniform{.seed = 3});
  auto cache = mha::make_cache(layer, mha::Contiguous{.length = full}, {.sequences = 2});
  support::Random random("a full sequence without allocation");
  mha::Tensor<T, 3> rows(full - 1, 2, 64), x(2, 1, 16), y(2, 1, 16);
  random.fill(rows);
  random.fill(x);
  const auto grow = [&](mha::SequenceId id, Index n) {
    auto step = cache.step(id, n);
    step.append(0, mha::view(std::as_const(rows).data(), n, 2, 64), mha::view(std::as_const(rows).data(), n, 2, 64));
    step.commit();
  };
  const mha::SequenceId longest = cache.add(), other = cache.add();
  grow(longest, full - 1);
  grow(other, 10);
  mha::Workspace workspace;
  const auto token = [&] { layer.step(x, cache, mha::into(y), workspace); };
  token();
  grow(other, chunk);
  cache.truncate(longest, full - 1);
  const Counted later = count(token);
  EXPECT_EQ(later.calls, 0u) << later.bytes << " bytes";
}

TEST(Decoding, AllocatesNothingBesideASequenceThatIsFull) {
  expect_no_allocation_beside_a_full_sequence<float, mha::Cpu>();
  expect_no_allocation_beside_a_full_sequence<float, mha::Systolic<>>();
  expect_no_allocation_beside_a_full_sequence<mha::bfloat16, mha::Systolic<>>();
}

// Beside short sequences, threads share the keys of one that grows, in ever more chunks.
template <class T, class B> void expect_no_allocation_of_uneven_lengths() {
  constexpr Index chunk = mha::detail::simd::key_chunk, sequences = 12, before = 2 * chunk - 4;
  const mha::ThreadPool pool(3);
  pool.run(100, [](Index, Index) {});  // its threads start
  mha::MultiHeadAttention<T, B, mha::GroupedQuery<mha::Dynamic>, mha::Causal> layer(
      {.d_model = 16, .num_heads = 32, .num_kv_heads = 2, .head_dim = 64}, B(pool));
  layer.initialize(mha::XavierUniform{.seed = 3});
  auto cache =
      mha::make_cache(layer, mha::Paged{.pages = 64, .length = 3 * chunk, .page = 64}, {.sequences = sequences});
  support::Random random("uneven tokens without allocation");
  mha::Tensor<T, 3> all(before, 2, 64), x(sequences, 1, 16), y(sequences, 1, 16);
  random.fill(all);
  random.fill(x);
  for (Index b = 0; b < sequences; ++b) cache.add();
  {
    auto step = cache.step(cache.ids()[0], before);
    step.append(0, all, all);
    step.commit();
  }
  mha::Workspace workspace;
  const auto token = [&] { layer.step(x, cache, mha::into(y), workspace); };
  token();
  const Counted later = count([&] {
    for (int i = 1; i < 20; ++i) token();
  });
  EXPECT_EQ(later.calls, 0u) << later.bytes << " bytes";
}

TEST(Decoding, AllocatesNothingAfterTheFirstTokenOfSequencesOfUnevenLengths) {
  expect_no_allocation_of_uneven_lengths<float, mha::Cpu>();
  expect_no_allocation_of_uneven_lengths<float, mha::Systolic<>>();
  expect_no_allocation_of_uneven_lengths<mha::bfloat16, mha::Systolic<>>();
}

// Of sequences that were short together, threads share the keys of those that have grown.
template <class T, class B> void expect_no_allocation_of_sequences_that_have_grown() {
  constexpr Index length = 17 * mha::detail::simd::key_chunk, sequences = 8, grown = 3;
  const mha::ThreadPool pool(2);
  pool.run(100, [](Index, Index) {});  // its threads start
  mha::MultiHeadAttention<T, B, mha::GroupedQuery<1>, mha::Causal> layer(
      {.d_model = 16, .num_heads = 32, .head_dim = 32, .value_dim = 128}, B(pool));
  layer.initialize(mha::XavierUniform{.seed = 3});
  auto cache =
      mha::make_cache(layer, mha::Paged{.pages = grown * length / 64 + sequences, .length = length, .page = 64},
                      {.sequences = sequences});
  support::Random random("grown sequences without allocation");
  mha::Tensor<T, 3> keys(length - 2, 1, 32), values(length - 2, 1, 128), x(sequences, 1, 16), y(sequences, 1, 16);
  random.fill(keys);
  random.fill(values);
  random.fill(x);
  for (Index b = 0; b < sequences; ++b) cache.add();
  mha::Workspace workspace;
  const auto token = [&] { layer.step(x, cache, mha::into(y), workspace); };
  token();
  for (Index b = 0; b < grown; ++b) {
    auto step = cache.step(cache.ids()[static_cast<std::size_t>(2 * b)], length - 2);
    step.append(0, keys, values);
    step.commit();
  }
  const Counted later = count(token);
  EXPECT_EQ(later.calls, 0u) << later.bytes << " bytes";
}

TEST(Decoding, AllocatesNothingOnceSomeSequencesHaveGrown) {
  expect_no_allocation_of_sequences_that_have_grown<float, mha::Cpu>();
  expect_no_allocation_of_sequences_that_have_grown<float, mha::Systolic<>>();
  expect_no_allocation_of_sequences_that_have_grown<mha::bfloat16, mha::Systolic<>>();
}

template <class T, class... Policies> void expect_no_allocation_in_a_second_step(const Policies&... policies) {
  mha::MultiHeadAttention<T, mha::Cpu, Policies...> layer({.d_model = 32, .num_heads = 4, .bias = true}, policies...);
  layer.initialize(mha::XavierUniform{.seed = 5});
  support::Random random("training without allocation");
  mha::Tensor<T, 3> x(2, 40, 32), dy(2, 40, 32), y(2, 40, 32), dx(2, 40, 32), memory(2, 50, 32), d_memory(2, 50, 32);
  random.fill(x);
  random.fill(dy);
  random.fill(memory);
  auto tape = layer.tape(), across = layer.tape();
  auto gradients = layer.gradients();
  mha::Workspace workspace;
  const auto step = [&] {
    layer(x, tape, mha::Causal{}, mha::into(y), workspace);
    layer.backward(dy, tape, gradients, mha::into(dx), workspace);
    layer(x, memory, across, mha::SoftCap{.cap = 3}, mha::into(y), workspace);
    layer.backward(dy, across, gradients, mha::into(dx), mha::memory_into(d_memory), workspace);
    layer.update([](const auto& p) { p.query.heads(0, 0, 0) = p.query.heads(0, 0, 1); });
    gradients.clear();
  };
  step();
  std::fill_n(dy.data(), 32, T(mha::Accumulator<T>(0)));  // a padded row, which is left out of sums
  const Counted second = count(step);
  EXPECT_EQ(second.calls, 0u) << second.bytes << " bytes";
}

TYPED_TEST(Memory, TrainingAllocatesNothingAfterTheFirstStep) {
  expect_no_allocation_in_a_second_step<TypeParam>();
  expect_no_allocation_in_a_second_step<TypeParam>(mha::Rotary<>{}, mha::QkNorm{}, mha::GatedHeads{},
                                                   mha::Sink({0.f, 1.f, 2.f, 3.f}));
  using Score = mha::Chain<mha::AlibiSlopes, mha::RelativeBias>;
  expect_no_allocation_in_a_second_step<TypeParam>(
      Score{mha::AlibiSlopes({1.f, 2.f, 3.f, 4.f}), mha::RelativeBias(std::vector<float>(32 * 4, 0.5f))});
}

TYPED_TEST(Memory, TheGradientOfACallsBiasAllocatesNothingAfterTheFirstStep) {
  using T = TypeParam;
  mha::MultiHeadAttention<T> layer({.d_model = 32, .num_heads = 4});
  layer.initialize(mha::XavierUniform{.seed = 5});
  mha::Tensor<T, 3> x(2, 40, 32), y(2, 40, 32), dx(2, 40, 32);
  mha::Tensor<float, 4> bias(1, 4, 40, 40);
  mha::Tensor<mha::Accumulator<T>, 4> d_bias(1, 4, 40, 40);
  support::Random("bias without allocation").fill(x);
  auto tape = layer.tape();
  auto gradients = layer.gradients();
  mha::Workspace workspace;
  const auto step = [&] {
    layer(x, tape, mha::AdditiveBias{bias}, mha::into(y), workspace);
    layer.backward(y, tape, gradients, mha::into(dx), mha::BiasGradient(d_bias), workspace);
  };
  step();
  const Counted second = count(step);
  EXPECT_EQ(second.calls, 0u) << second.bytes << " bytes";
}

TYPED_TEST(Memory, ATapeTakesTheBytesThatItsCostTells) {
  using T = TypeParam;
  mha::MultiHeadAttention<T, mha::Cpu, mha::GroupedQuery<2>, mha::QkNorm> layer({.d_model = 96, .num_heads = 4});
  mha::FeedForward<T, mha::Cpu, mha::SwiGlu> feed_forward({.d_model = 96, .d_hidden = 160});
  layer.initialize(mha::XavierUniform{.seed = 5});
  feed_forward.initialize(mha::XavierUniform{.seed = 6});
  mha::Tensor<T, 3> x(3, 80, 96), y(3, 80, 96);
  mha::Workspace workspace;
  const auto expect = [&](const auto& called, double bytes) {
    auto warm = called.tape(), tape = called.tape();
    called(x, warm, mha::into(y), workspace);
    const Counted kept = count([&] { called(x, tape, mha::into(y), workspace); });
    EXPECT_GE(double(kept.bytes), bytes);
    EXPECT_LE(double(kept.bytes), bytes + 4096);
  };
  expect(layer, layer.backward_cost(3, 80, 80).tape_bytes);
  expect(feed_forward, feed_forward.backward_cost(240).tape_bytes);
}

TYPED_TEST(Memory, TrainingABlockAllocatesNothingAfterTheFirstStep) {
  using T = TypeParam;
  mha::LayerNorm<T> norm({.width = 32});
  mha::FeedForward<T, mha::Cpu, mha::SwiGlu> feed_forward({.d_model = 32, .d_hidden = 90});
  mha::Linear<T> linear({.inputs = 32, .outputs = 10});
  feed_forward.initialize(mha::XavierUniform{.seed = 5});
  linear.initialize(mha::XavierUniform{.seed = 6});
  support::Random random("training a block without allocation");
  mha::Tensor<T, 3> x(2, 80, 32), h(2, 80, 32), y(2, 80, 32), z(2, 80, 10), dz(2, 80, 10), dy(2, 80, 32), dx(2, 80, 32);
  random.fill(x);
  random.fill(dz);
  auto norm_tape = norm.tape();
  auto feed_forward_tape = feed_forward.tape();
  auto linear_tape = linear.tape();
  auto norm_gradients = norm.gradients();
  auto feed_forward_gradients = feed_forward.gradients();
  auto linear_gradients = linear.gradients();
  mha::Workspace workspace;
  const auto step = [&] {
    norm(x, norm_tape, mha::residual(x), mha::into(h), workspace);
    feed_forward(h, feed_forward_tape, mha::residual(x), mha::into(y), workspace);
    linear(y, linear_tape, mha::into(z), workspace);
    linear.backward(dz, linear_tape, linear_gradients, mha::into(dy), workspace);
    feed_forward.backward(dy, feed_forward_tape, feed_forward_gradients, mha::into(dx), workspace);
    norm.backward(dx, norm_tape, norm_gradients, mha::add_to(dy), workspace);
    linear_gradients.clear();
  };
  step();
  std::fill_n(dz.data(), dz.extent(2), T(mha::Accumulator<T>(0)));  // a padded row, which is left out of sums
  const Counted second = count(step);
  EXPECT_EQ(second.calls, 0u) << second.bytes << " bytes";
}

TYPED_TEST(Memory, TrainingOnMorePaddedRowsAllocatesNothing) {
  using T = TypeParam;
  mha::Linear<T> linear({.inputs = 256, .outputs = 8});
  linear.initialize(mha::XavierUniform{.seed = 7});
  support::Random random("training on padded rows without allocation");
  mha::Tensor<T, 2> x(200, 256), dy(200, 8), dx(200, 256);
  random.fill(x);
  random.fill(dy);
  auto tape = linear.tape();
  auto gradients = linear.gradients();
  mha::Workspace workspace;
  static_cast<void>(linear(x, tape));
  const auto step = [&] { linear.backward(dy, tape, gradients, mha::into(dx), workspace); };
  step();
  std::fill_n(dy.data(), 8, T(mha::Accumulator<T>(0)));  // it is left out of the sums
  const Counted second = count(step);
  EXPECT_EQ(second.calls, 0u) << second.bytes << " bytes";
}

/// call(x, y, workspace) of rows of 32 allocates nothing for the second time; without the workspace it does, if it
/// needs memory at all.
template <class T, class B = mha::Cpu, class F> void expect_kept_workspace(const F& call, bool needs_memory = true) {
  support::Random random("blocks without allocation");
  mha::Tensor<T, 3> x(2, 70, 32), y(2, 70, 32);
  random.fill(x);
  typename B::Workspace workspace;
  call(x, y, workspace);
  const Counted second = count([&] { call(x, y, workspace); });
  EXPECT_EQ(second.calls, 0u) << second.bytes << " bytes";
  typename B::Workspace another;
  EXPECT_EQ(count([&] { call(x, y, another); }).calls > 0, needs_memory) << B::name;
}

template <class T, class B> void expect_blocks_allocate_nothing() {
  const auto check = [](auto block, bool needs_memory = true) {
    if constexpr (requires { block.initialize(mha::XavierUniform{.seed = 5}); })
      block.initialize(mha::XavierUniform{.seed = 5});
    expect_kept_workspace<T, B>(
        [&](const auto& x, auto& y, auto& workspace) { block(x, mha::residual(x), mha::into(y), workspace); },
        needs_memory);
  };
  check(mha::FeedForward<T, B>({.d_model = 32, .d_hidden = 90}));
  check(mha::FeedForward<T, B, mha::SwiGlu>({.d_model = 32, .d_hidden = 90}));
  check(mha::Linear<T, B, mha::Gelu>({.inputs = 32, .outputs = 32}), !std::is_same_v<B, mha::Reference>);
}

TYPED_TEST(Memory, BlocksWithAWorkspaceAllocateNothingTheSecondTime) {
  expect_blocks_allocate_nothing<TypeParam, mha::Cpu>();
}
TEST(MemoryBlock, AllocatesNothingTheSecondTimeOnOtherBackends) {
  expect_blocks_allocate_nothing<float, mha::Systolic<>>();
  expect_blocks_allocate_nothing<mha::bfloat16, mha::Systolic<>>();
  expect_blocks_allocate_nothing<float, mha::EigenCpu>();
  expect_blocks_allocate_nothing<float, mha::Reference>();
}

template <class T, class B> void expect_norms_allocate_nothing() {
  const auto check = [](const auto& norm) {
    support::Random random("norm without allocation");
    mha::Tensor<T, 3> x(2, 40, 96), y(2, 40, 96), sum(2, 40, 96);
    random.fill(x);
    typename B::Workspace workspace;
    const auto call = [&] {
      norm(x, mha::residual(x), mha::into(y), workspace);
      norm(x, mha::residual(x), mha::sum_into(sum), mha::into(y), workspace);
    };
    call();
    EXPECT_EQ(count(call).calls, 0u) << B::name;
    if constexpr (sizeof(T) >= 4) {  // 16-bit rows are widened into scratch
      EXPECT_EQ(count([&] { norm(y, mha::into(y)); }).calls, 0u) << "without a workspace";
    }
  };
  check(mha::LayerNorm<T, B>({.width = 96}));
  check(mha::RmsNorm<T, B>({.width = 96}));
}

TYPED_TEST(Memory, NormsWithAWorkspaceAllocateNothingTheSecondTime) {
  expect_norms_allocate_nothing<TypeParam, mha::Cpu>();
}
TEST(MemoryBlock, NormsAllocateNothingTheSecondTimeOnOtherBackends) {
  expect_norms_allocate_nothing<float, mha::Reference>();
  expect_norms_allocate_nothing<float, mha::EigenCpu>();
  expect_norms_allocate_nothing<float, mha::Systolic<>>();
  expect_norms_allocate_nothing<mha::bfloat16, mha::Systolic<>>();
}

TEST(MemoryBlock, NarrowWeightsAllocateNothingTheSecondTime) {
  mha::Tensor<mha::bfloat16, 2> weight(32, 32);
  support::Random random("narrow weights without allocation");
  random.fill(weight);
  mha::Linear<float, mha::Cpu, mha::Relu> linear({.inputs = 32, .outputs = 32, .bias = false});
  linear.borrow(mha::BorrowedLinear<mha::bfloat16>{.weight = weight.view()});
  expect_kept_workspace<float>(
      [&](const auto& x, auto& y, auto& workspace) { linear(x, mha::residual(x), mha::into(y), workspace); });
}

// Every step writes where the next one reads: a call takes Q, K, V and the heads, and a tile's scratch.
TEST(MemoryLayer, NothingIsCopiedBetweenTheSteps) {
  using Serial = mha::CpuWith<mha::Serial>;
  const auto taken = [](Index length) {
    mha::MultiHeadAttention<float, Serial, mha::Rotary<>, mha::QkNorm, mha::GatedHeads> layer(
        {.d_model = 64, .num_heads = 4});
    layer.initialize(mha::XavierUniform{.seed = 6});
    support::Random random("steps");
    mha::Tensor<float, 2> x(length, 64), y(length, 64);
    random.fill(x);
    mha::Workspace workspace;
    layer(x, mha::into(y), workspace);
    layer(x, mha::into(y), workspace);
    return workspace.bytes();
  };
  EXPECT_EQ(taken(2048) - taken(1024), 1024u * 4 * 64 * sizeof(float));
}

TEST(MemoryLayer, TheSameWeightsUnderAnotherMaskAreNotCopied) {
  using Serial = mha::CpuWith<mha::Serial>;
  const mha::Config config{.d_model = 64, .num_heads = 4};
  mha::MultiHeadAttention<float, Serial> layer(config);
  layer.initialize(mha::XavierUniform{.seed = 5});
  mha::MultiHeadAttention<float, Serial, mha::Causal> causal(config);
  EXPECT_LT(count([&] { causal.borrow(layer); }).bytes, 1024u) << "4 · 64² floats are 65536 bytes";
  support::Random random("another mask");
  mha::Tensor<float, 2> x(9, 64);
  random.fill(x);
  EXPECT_EQ(support::differing(causal(x), layer(x, mha::Causal{})), 0u);
}

TEST(MemoryLargest, NothingOfTheSizeOfTheWeightsIsAllocated) {
  support::Random random("largest");
  const Inputs<float> in({.batch = 1, .heads = 2, .kv_heads = 2, .queries = 1500, .keys = 1500, .head_dim = 8}, random);
  mha::Tensor<float, 4> out(1, 1500, 2, in.v.extent(3));
  const Counted fused = count([&] { mha::attention_into(out, in.q, in.k, in.v); });
  EXPECT_LT(fused.largest, 1500u * 1500u * sizeof(float) / 8);
  const Counted stored = count([&] { static_cast<void>(mha::attention_weights(in.q, in.k)); });
  EXPECT_GE(stored.largest, 2u * 1500u * 1500u * sizeof(float)) << "the counter does not see it";
}

}  // namespace
