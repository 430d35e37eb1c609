// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <mha/core/scalar.hpp>

#include "host_machine.hpp"

namespace support::gpu {

/// One thread of a block on the host model of a machine with warpgroups.
///
/// A product is as late as it may be: its accumulators are NaN until the wgmma_wait that lands it, which reads its
/// registers and its shared memory. It is as early too: what it will read is checked when it begins.
class WarpgroupHostMachine : public HostMachine {
 public:
  using HostMachine::HostMachine;

  template <class T, int N> void wgmma(float (&d)[std::size_t{N / 8}][4], Shared a, Shared b, bool add) {
    begin<T, N, false>({this, &d[0][0], nullptr, a, b, 0, add});
  }
  template <class T, int N>
  void wgmma(float (&d)[std::size_t{N / 8}][4], const std::uint32_t (&a)[4], Shared b, Shared panel) {
    begin<T, N, true>({this, &d[0][0], a, 0, b, panel, true});
  }
  void wgmma_fence() {
    meet("wgmma_fence", [](auto&) {});
    fenced_ = true;
  }
  void wgmma_commit() {
    meet("wgmma_commit", [](auto&) {});
    fenced_ = false;
    ++commits_;
  }
  template <int N> void wgmma_wait() {
    static const std::string what = "wgmma_wait<" + std::to_string(N) + ">";
    meet(what.c_str(), [](auto& lane) { lane[0]->machine->land(N); });
  }
  template <std::size_t M> void hold(float (&)[M][4]) const {}
  template <std::size_t M> void hold(std::uint32_t (&)[M][4]) const {}
  int uniform(int x) {
    if (shuffle_xor(static_cast<std::uint32_t>(x), 1) != static_cast<std::uint32_t>(x))
      throw Fault("uniform of values that differ");
    return x;
  }
  void fence_proxy() { block_.memory.fence_proxy(thread_); }

  void leave() const {
    HostMachine::leave();
    if (!products_.empty()) throw Fault("left the kernel with a wgmma in flight");
  }

 private:
  static constexpr int rows = 64, depth = 16, most_columns = 256;
  static constexpr std::uint32_t poison = 0xffffffffu;  // a NaN

  /// What a thread brings to a product.
  struct Call {
    WarpgroupHostMachine* machine;
    float* d;
    const std::uint32_t* a_registers;  // null: a is in shared memory
    Shared a, b, panel;
    bool add;
  };
  struct Product {
    Call call;  // of thread 0
    int columns, group;
    std::uint64_t begun;             // SharedMemory::writes() then
    float (*number)(std::uint16_t);  // of the bits of a scalar
    std::array<float*, warpgroup_size> d;
    std::array<const std::uint32_t*, warpgroup_size> a;
    std::vector<float> sum;  // (64, columns): what is added to, once it is known
  };

  template <class Apply> void meet(const char* what, Apply&& apply) {
    Call mine{this, nullptr, nullptr, 0, 0, 0, false};
    block_.meet_warpgroup(thread_, what, mine, apply);
  }

  template <class T, int N, bool Registers> void begin(Call mine) {
    static_assert(N % 8 == 0 && 8 <= N && N <= most_columns && (!Registers || N < 64 || N % 64 == 0));
    static const std::string what = std::string("wgmma of ") + (Registers ? "registers, " : "shared memory, ") +
                                    (std::is_same_v<T, mha::half> ? "half" : "bfloat16") + ", N = " + std::to_string(N);
    if (!fenced_) throw Fault("a wgmma without a wgmma_fence since the last wgmma_commit");
    block_.meet_warpgroup(thread_, what.c_str(), mine, [](auto& lane) {
      WarpgroupHostMachine& first = *lane[0]->machine;
      Product p{*lane[0], N, first.commits_, first.block_.memory.writes(), nullptr, {}, {}, {}};
      p.number = [](std::uint16_t bits) { return static_cast<float>(T::from_bits(bits)); };
      for (std::size_t t = 0; t < warpgroup_size; ++t) {
        const Call &c = *lane[t], &o = p.call;
        if (c.a != o.a || c.b != o.b || c.panel != o.panel || c.add != o.add)
          throw Fault("the threads of a warpgroup name different operands of a wgmma");
        p.d[t] = c.d;
        p.a[t] = c.a_registers;
      }
      first.begin(std::move(p));
    });
  }

  // From here on of thread 0 of a warpgroup, which keeps the products of all.

  void begin(Product p) {
    check_addresses(p);
    float left[rows][depth], right[depth][most_columns];
    read(p, left, right);
    p.sum.resize(static_cast<std::size_t>(rows * p.columns));
    const bool chained = follower(p) != products_.end();
    if (chained) expect_untouched(p);
    if (p.call.add && !chained) each_element(p, [](float& d, float& sum) { sum = d; });
    each_element(p, [](float& d, float&) { std::memcpy(&d, &poison, sizeof d); });
    products_.push_back(std::move(p));
    ++block_.count.wgmma;
  }

  void land(int in_flight) {
    while (!products_.empty() && products_.front().group < commits_ - in_flight) {
      Product p = std::move(products_.front());
      products_.pop_front();
      expect_untouched(p);
      multiply(p);
      if (const auto next = follower(p); next == products_.end())
        each_element(p, [](float& d, float& sum) { d = sum; });
      else if (next->call.add)
        next->sum = std::move(p.sum);
    }
  }

  /// The first product in flight with the same accumulators.
  std::deque<Product>::iterator follower(const Product& p) {
    return std::find_if(products_.begin(), products_.end(),
                        [&](const Product& x) { return x.columns == p.columns && x.d == p.d; });
  }

  void multiply(Product& p) {
    float left[rows][depth], right[depth][most_columns];
    read(p, left, right);
    for (int i = 0; i < rows; ++i) {
      float* const sum = p.sum.data() + i * p.columns;
      for (int k = 0; k < depth; ++k)
        for (int j = 0; j < p.columns; ++j) sum[j] += left[i][k] * right[k][j];
    }
  }

  /// The operands as they are now.
  void read(const Product& p, float (&left)[rows][depth], float (&right)[depth][most_columns]) {
    const Call& c = p.call;
    for (int i = 0; i < rows; ++i)
      for (int k = 0; k < depth; k += 8)
        if (c.a_registers == nullptr) {
          float chunk[8];
          read_chunk(p, i / 16, i / 16 + 1, c.a + i * 128 + k * 2, chunk);
          std::copy_n(chunk, 8, left[i] + k);
        }
    if (c.a_registers != nullptr)
      for (int t = 0; t < warpgroup_size; ++t)
        for (int r = 0; r < 4; ++r) {  // as in mma.m16n8k16
          const std::uint32_t pair = p.a[static_cast<std::size_t>(t)][r];
          float* const to = &left[t / warp_size * 16 + t % warp_size / 4 + r % 2 * 8][t % 4 * 2 + r / 2 * 8];
          to[0] = p.number(static_cast<std::uint16_t>(pair & 0xffffu));
          to[1] = p.number(static_cast<std::uint16_t>(pair >> 16));
        }
    float chunk[8];
    if (c.a_registers == nullptr)  // rows of b are columns of the product
      for (int j = 0; j < p.columns; ++j)
        for (int k = 0; k < depth; k += 8) {
          read_chunk(p, 0, 4, c.b + j * 128 + k * 2, chunk);
          for (int e = 0; e < 8; ++e) right[k + e][j] = chunk[e];
        }
    else
      for (int k = 0; k < depth; ++k)
        for (int j = 0; j < p.columns; j += 8) {
          read_chunk(p, 0, 4, c.b + j / 64 * c.panel + k * 128 + j % 64 * 2, chunk);
          std::copy_n(chunk, 8, right[k] + j);
        }
  }

  /// Warps from … to - 1 read 16 bytes. PTX ISA, "128B swizzle mode": bits 4 … 6 of an address are xored with 7 … 9.
  void read_chunk(const Product& p, int from, int to, Shared at, float (&chunk)[8]) {
    std::uint16_t bits[8];
    for (int w = from; w < to; ++w)
      block_.memory.read_by_proxy(thread_ + w * warp_size, p.begun, at ^ (at >> 7 & 7) << 4, 16, bits);
    for (int e = 0; e < 8; ++e) chunk[e] = p.number(bits[e]);
  }

  static void check_addresses(const Product& p) {
    const Call& c = p.call;
    const auto check = [](const char* what, Shared at, int chunks) {
      const auto fault = [&](const char* why) {
        throw Fault(std::string("wgmma: ") + what + " at " + std::to_string(at) + why);
      };
      if (at % 16 != 0) fault(" is no multiple of 16");
      if (at / 128 % 8 != 0) fault(" begins in a row that is no multiple of 8");
      if (at / 16 % 8 + chunks > 8) fault(" reaches past its panel");
    };
    const bool by_rows = c.a_registers != nullptr;
    if (!by_rows) check("a", c.a, depth / 8);
    check("b", c.b, by_rows ? std::min(p.columns, 64) / 8 : depth / 8);
    if (by_rows && p.columns > 64 && c.panel % 1024 != 0)
      throw Fault("wgmma: panels " + std::to_string(c.panel) + " bytes apart are not aligned to 1024");
  }

  static void expect_untouched(Product& p) {
    each_element(p, [](float& d, float&) {
      if (std::memcmp(&d, &poison, sizeof d) != 0)
        throw Fault("the accumulator of a wgmma was written while it was in flight");
    });
  }

  /// use(element of d, the same of sum).
  template <class Use> static void each_element(Product& p, Use&& use) {
    for (int t = 0; t < warpgroup_size; ++t)
      for (int n = 0; n < p.columns / 8; ++n)
        for (int e = 0; e < 4; ++e) {
          const int row = t / warp_size * 16 + t % warp_size / 4 + e / 2 * 8, column = n * 8 + t % 4 * 2 + e % 2;
          use(p.d[static_cast<std::size_t>(t)][n * 4 + e], p.sum[static_cast<std::size_t>(row * p.columns + column)]);
        }
  }

  bool fenced_ = false;
  int commits_ = 0;
  std::deque<Product> products_;
};

static_assert(mha::cuda::WarpgroupMachine<WarpgroupHostMachine>);

/// A kernel whose body is written for warpgroups.
template <class Kernel>
concept WarpgroupKernel = requires {
  Kernel::warpgroups;
};

/// The machine that a kernel runs on here.
template <class Kernel>
using MachineOf = std::conditional_t<WarpgroupKernel<Kernel>, WarpgroupHostMachine, HostMachine>;

}  // namespace support::gpu
