// SPDX-License-Identifier: Apache-2.0
// 17: your own threads
//
// You learn   a backend is a value: a layer keeps the one it is given, a call may be given another; a pool of your own
//             with its size, shared by its copies; an executor of your own
// The maths   none: threads change no bit of a result
// Symbols     L = 512 tokens, E = 256 numbers each, H = 8 heads; X, Y (L, E)
// Output      how many threads each backend has, and five lines that end in "yes"
// Next        18_checkpoint.cpp
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <thread>

#include <mha/mha.hpp>

constexpr int L = 512, E = 256, H = 8;

int failures = 0;
void check(const char* claim, bool holds) {
  std::printf("%-66s %s\n", claim, holds ? "yes" : "NO");
  failures += !holds;
}

bool same_bits(const mha::Tensor<float, 2>& a, const mha::Tensor<float, 2>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// An executor is three members: a name, how many workers there are at most, and run(), which calls f(task, worker) once
// for every task. This one counts what it runs, and runs it in the calling thread.
class Counting {
 public:
  static constexpr const char* name = "Counting";
  explicit Counting(std::atomic<int>& tasks) : tasks_(&tasks) {}
  int workers() const { return 1; }
  template <class F> void run(int tasks, F&& f) const {
    *tasks_ += tasks;
    for (int t = 0; t < tasks; ++t) f(t, 0);
  }

 private:
  std::atomic<int>* tasks_;
};

int main() {
  mha::Tensor<float, 2> x(L, E);
  for (int i = 0; i < L; ++i)
    for (int e = 0; e < E; ++e) x(i, e) = std::sin(0.1f * float(i + 1) * float(e));

  // Everything in the calling thread: what the others are compared with.
  mha::MultiHeadAttention<float, mha::CpuWith<mha::Serial>, mha::Causal> alone({.d_model = E, .num_heads = H});
  alone.initialize(mha::XavierUniform{.seed = 1});
  const auto expected = alone(x);  // (L, E)

  // Two layers on one pool of two threads. The pool's threads end with the last copy of it.
  const mha::Cpu two(mha::ThreadPool(2));
  mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> first({.d_model = E, .num_heads = H}, two);
  mha::MultiHeadAttention<float, mha::Cpu, mha::Causal> second({.d_model = E, .num_heads = H}, two);
  first.borrow(alone);
  second.borrow(alone);
  std::printf("shared pool: %d threads, ours: %d\n", mha::ThreadPool{}.workers(), first.backend().threads().workers());
  check("a layer on a pool of two threads gives the bits of one", same_bits(first(x), expected));

  // Many threads may call at once; a call that finds the pool busy computes in its own thread.
  mha::Tensor<float, 2> y(L, E);
  std::thread other([&] { second(x, mha::into(y)); });
  const bool here = same_bits(first(x), expected);
  other.join();
  check("so do two layers that share it, called at once", here && same_bits(y, expected));

  // One call on a pool of its own.
  check("a call may bring a pool of its own", same_bits(first(x, mha::Cpu(mha::ThreadPool(3))), expected));

  // Attention alone takes the backend among its other arguments.
  const auto heads = mha::view(x.data(), L, H, E / H);  // (L, H, D)
  const auto a = mha::attention(heads, heads, heads, mha::Causal{}, two);
  const auto b = mha::attention(heads, heads, heads, mha::CpuWith<mha::Serial>{}, mha::Causal{});
  check("attention() takes one too", std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);

  // The executor above; the type of the layer is deduced from the values.
  std::atomic<int> tasks{0};
  auto counted =
      mha::make_attention<float>({.d_model = E, .num_heads = H}, mha::Causal{}, mha::CpuWith(Counting(tasks)));
  counted.borrow(alone);
  check("an executor of your own runs the tasks", same_bits(counted(x), expected) && tasks > 0);
  return failures == 0 ? 0 : 1;
}
