// SPDX-License-Identifier: Apache-2.0
// A backend with memory of its own that the host cannot read or write: every slip of the code around it is a crash.
#pragma once

#include <cstddef>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/mman.h>

#include <mha/backend/reference/reference.hpp>
#include <mha/backend/weights.hpp>
#include <mha/core/tensor.hpp>
#include <mha/policy/sink.hpp>

namespace support {

/// The pages of two devices, closed to everybody but while a Kernel lives, which opens one's. Nothing is given back:
/// tests are small.
struct FarMemory {
  static constexpr std::size_t alignment = 64;
  static constexpr std::size_t capacity = std::size_t{1} << 32;
  static constexpr int devices = 2;
  static inline int current = 0;  ///< the device that allocates and computes

  static std::byte* base(int device) {
    static std::byte* const region = [] {
      void* const p =
          ::mmap(nullptr, devices * capacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (p == MAP_FAILED) throw std::bad_alloc();
      return static_cast<std::byte*>(p);
    }();
    return region + static_cast<std::size_t>(device) * capacity;
  }
  static std::byte* allocate(std::size_t bytes) {
    static std::size_t used[devices] = {};
    std::byte* const p = base(current) + used[current];
    used[current] += (bytes + alignment - 1) / alignment * alignment;
    if (used[current] > capacity) throw std::bad_alloc();
    return p;
  }
  static void free(std::byte*) noexcept {}
  /// Which device has it; −1: it is the host's.
  static int device_of(const void* p) {
    for (int d = 0; d < devices; ++d)
      if (p >= base(d) && p < base(d) + capacity) return d;
    return -1;
  }
  static bool holds(const void* p) { return device_of(p) >= 0; }
};

/// While one lives, the memory of the device that was current when it began can be read and written, no other's.
class Kernel {
 public:
  Kernel() { open_close(depth()++ == 0, PROT_READ | PROT_WRITE); }
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  ~Kernel() { open_close(--depth() == 0, PROT_NONE); }

 private:
  static int& depth() {
    static int n = 0;
    return n;
  }
  static void open_close(bool change, int protection) {
    static int opened = 0;
    if (protection != PROT_NONE && change) opened = FarMemory::current;
    if (change && ::mprotect(FarMemory::base(opened), FarMemory::capacity, protection) != 0) std::abort();
  }
};

inline void want_far(const char* what, const void* p) {
  if (p != nullptr && !FarMemory::holds(p))
    throw std::logic_error(std::string("a kernel got memory of the host: ") + what);
}

/// Everything that a call points to.
template <class T, class Source, class M, class S> void want_far(const mha::AttendCall<T, Source, M, S>& call) {
  for (const void* p : {static_cast<const void*>(call.q.data), static_cast<const void*>(call.out.data),
                        static_cast<const void*>(call.log_sum_exp.data)})
    want_far("a tensor", p);
  if constexpr (requires { call.kv.key.data; }) {
    want_far("the keys", call.kv.key.data);
    want_far("the values", call.kv.value.data);
  }
  for (const mha::Index* p : {call.q_offsets, call.shape.query_offsets, call.shape.origin.each})
    want_far("offsets or origins", p);
  want_far("a sink", call.sink.data);
  const auto check = [](const auto& data) {
    if constexpr (requires { data.each; })
      want_far("a policy's origins", data.each);
    else
      want_far("a policy's data", data.data);
    return data;
  };
  mha::detail::source_with_data(call.kv, check);
  mha::with_data(call.mask, check);
  mha::with_data(call.score, check);
}

/// An owner of far memory.
template <class T, int Rank> class FarTensor {
 public:
  FarTensor() = default;
  template <class... I> explicit FarTensor(I... extents) : view_(mha::view(static_cast<T*>(nullptr), extents...)) {
    view_.data = reinterpret_cast<T*>(FarMemory::allocate(static_cast<std::size_t>(view_.size()) * sizeof(T)));
  }
  explicit FarTensor(const mha::Tensor<T, Rank>& near) : view_() {
    const auto v = near.view();
    for (int a = 0; a < Rank; ++a) {
      view_.extent[a] = v.extent[a];
      view_.stride[a] = v.stride[a];
    }
    view_.data = reinterpret_cast<T*>(FarMemory::allocate(near.size() * sizeof(T)));
    const Kernel open;
    std::copy(near.begin(), near.end(), view_.data);
  }
  mha::Tensor<T, Rank> near() const {
    mha::Tensor<T, Rank> n;
    if constexpr (Rank == 2) n = mha::Tensor<T, 2>(view_.extent[0], view_.extent[1]);
    if constexpr (Rank == 3) n = mha::Tensor<T, 3>(view_.extent[0], view_.extent[1], view_.extent[2]);
    if constexpr (Rank == 4) n = mha::Tensor<T, 4>(view_.extent[0], view_.extent[1], view_.extent[2], view_.extent[3]);
    const Kernel open;
    std::copy_n(view_.data, n.size(), n.begin());
    return n;
  }
  mha::Index extent(int axis) const { return view_.extent[axis]; }
  mha::TensorView<T, Rank> view() const { return view_; }

 private:
  mha::TensorView<T, Rank> view_;
};

/// Scratch in far memory, and on the host for what describes a call.
class FarWorkspace {
 public:
  static constexpr bool is_workspace = true;
  class Frame {
   public:
    explicit Frame(FarWorkspace& w) : far_(w.far_), here_(w.here_) {}
    template <class T> T* take(std::size_t n) { return far_.template take<T>(n); }
    template <class T> T* take_host(std::size_t n) { return here_.template take<T>(n); }

   private:
    mha::Arena<FarMemory>::Frame far_;
    mha::Arena<mha::HostMemory>::Frame here_;
  };
  Frame frame() { return Frame(*this); }

 private:
  mha::Arena<FarMemory> far_;
  mha::Arena<mha::HostMemory> here_;
};

/// A policy whose data was copied to far memory.
template <class P> P far_copy(const P& policy) {
  return mha::with_data(policy, [](const auto& data) {
    auto moved = data;
    if constexpr (requires { data.memory; }) {
      using T = std::remove_cvref_t<decltype(*data.data)>;
      T* const to = reinterpret_cast<T*>(FarMemory::allocate(static_cast<std::size_t>(data.size) * sizeof(T)));
      const Kernel open;
      std::copy_n(data.data, data.size, to);
      moved.data = to;
      moved.memory = mha::Memory::device;
    }
    return moved;
  });
}

/// The reference's arithmetic on far memory.
struct Far {
  static constexpr const char* name = "Far";
  static constexpr mha::Memory memory = mha::Memory::device;
  static constexpr bool side_by_side = true;
  static inline int products = 0, merged = 0, staged = 0;
  using Workspace = FarWorkspace;
  using Index = mha::Index;
  template <class T, int Rank> using Tensor = FarTensor<T, Rank>;

  mha::Support supported() const { return {}; }

  template <class T> void gemm(const mha::GemmCall<T>& call, Workspace&) const {
    for (const T* p : {call.a.data, call.b.data, call.bias.data, static_cast<const T*>(call.c.data)})
      want_far("a product's matrix", p);
    const Kernel open;
    mha::Workspace none;
    mha::Reference{}.gemm(call, none);
    ++products;
  }

  template <class T> struct Packed {
    std::vector<FarTensor<T, 2>> matrices, biases;
    std::size_t bytes() const { return matrices.size(); }
  };
  template <class T> Packed<T> pack(std::span<const mha::DenseWeights<T>> parts) const {
    Packed<T> packed;
    for (const auto& w : parts) {
      mha::Tensor<T, 2> matrix(w.matrix.extent[0], w.matrix.extent[1]), bias(1, w.bias.extent[0]);
      for (Index i = 0; i < w.matrix.extent[0]; ++i)
        for (Index j = 0; j < w.matrix.extent[1]; ++j) matrix(i, j) = w.matrix(i, j);
      for (Index j = 0; j < w.bias.extent[0]; ++j) bias(0, j) = w.bias(j);
      packed.matrices.emplace_back(matrix);
      packed.biases.emplace_back(bias);
    }
    return packed;
  }
  template <class T> void gemm(const mha::PackedGemmCall<T, Packed<T>>& call, Workspace& workspace) const {
    bool beside = call.c.size() > 1;
    for (std::size_t i = 1; i < call.c.size(); ++i)
      beside = beside && call.c[i].data == call.c[i - 1].data + call.c[i - 1].extent[1] &&
               call.c[i].stride[0] == call.c[i - 1].stride[0];
    merged += beside ? 1 : 0;
    for (std::size_t i = 0; i < call.c.size(); ++i) {
      const std::size_t part = static_cast<std::size_t>(call.first) + i;
      const auto bias = call.weights.biases[part].view();
      const mha::TensorView<const T, 1> row{bias.extent[1] > 0 ? bias.data : nullptr, {bias.extent[1]}, {1}};
      gemm(mha::GemmCall<T>{call.a, call.weights.matrices[part].view(), row, call.c[i]}, workspace);
    }
  }

  template <class T, class Source, class M, class S>
  void attend(const mha::AttendCall<T, Source, M, S>& call, Workspace&) const {
    want_far(call);
    const Kernel open;
    mha::Workspace none;
    mha::Reference{}.attend(call, none);
  }
  template <class T, class Source, class M, class S>
  void weights(const mha::AttendCall<T, Source, M, S>& call, const mha::TensorView<mha::Accumulator<T>, 4>& to,
               Workspace& workspace) const {
    want_far(call);
    want_far("the weights", to.data);
    mha::detail::run_softmax(call, to, mha::detail::ItemsOn<Far>{*this, workspace});
  }

  /// The last row first: a device runs them in any order.
  template <mha::Items I> void for_each_item(const I& items, Workspace&) const {
    const Kernel open;
    for (std::ptrdiff_t row = items.rows; row-- > 0;) mha::detail::run_rows(items, row, row + 1);
  }

  const Index* stage(const Index* numbers, Index n, Workspace::Frame& frame, Workspace&) const {
    Index* const to = frame.take<Index>(static_cast<std::size_t>(n));
    const Kernel open;
    std::copy_n(numbers, n, to);
    ++staged;
    return to;
  }

  template <class T> class Upload {
   public:
    explicit Upload(std::span<const T> from) {
      mha::Tensor<T, 2> row(1, from.size());
      std::copy(from.begin(), from.end(), row.begin());
      row_ = FarTensor<T, 2>(row);
    }
    const T* data() const { return row_.view().data; }

   private:
    FarTensor<T, 2> row_;
  };
  template <class T> Upload<T> upload(std::span<const T> from) const { return Upload<T>(from); }
  template <class T> void download(const T* from, std::span<T> to, Workspace&) const {
    want_far("what is downloaded", from);
    const Kernel open;
    std::copy_n(from, to.size(), to.begin());
  }

  /// A Sink is no policy of with_data(): this one keeps its logits far.
  struct FarSink {
    static constexpr mha::Role role = mha::Role::sink;
    mha::Borrowed<float> all;
    mha::Borrowed<float> logits(Index) const { return all; }
  };
  template <class P> auto keep(const P& policy) const {
    if constexpr (std::is_same_v<P, mha::Sink>) {
      FarSink sink{policy.logits(static_cast<Index>(policy.per_head().size()))};
      float* const to = reinterpret_cast<float*>(FarMemory::allocate(sizeof(float) * std::size_t(sink.all.size)));
      const Kernel open;
      std::copy_n(sink.all.data, sink.all.size, to);
      sink.all = {to, sink.all.size, mha::Memory::device};
      return sink;
    } else if constexpr (requires { policy.view(); }) {
      return far_copy(policy.view());
    } else {
      return far_copy(policy);
    }
  }

  void require_reachable(const char* call, const char* tensor, const void* p) const {
    if (!FarMemory::holds(p)) throw mha::ShapeError(std::string(call) + ": " + tensor + " is in host memory");
  }

  template <class T> std::string explain(const mha::AttendPlan&) const { return "Far: the reference, far away"; }
};

static_assert(mha::Backend<Far> && mha::PacksWeights<Far, float>);

}  // namespace support

template <class T, int Rank> struct mha::ViewTraits<support::FarTensor<T, Rank>> {
  using Scalar = T;
  static constexpr int rank = Rank;
  static constexpr Memory memory = Memory::device;
  static TensorView<T, Rank> view(const support::FarTensor<T, Rank>& t) { return t.view(); }
};
