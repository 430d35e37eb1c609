// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "../../core/borrowed.hpp"
#include "../../core/check.hpp"
#include "../../policy/call_shape.hpp"
#include "../../policy/mask.hpp"
#include "../../policy/mask/block_sparse.hpp"
#include "../../policy/role.hpp"
#include "../../policy/score.hpp"
#include "../../policy/score/alibi_slopes.hpp"
#include "../../policy/score/relative_bias.hpp"
#include "../../policy/sink.hpp"
#include "device.hpp"
#include "device_memory.hpp"

namespace mha::inline MHA_NAMESPACE {

namespace cuda {

/// Arrays that a policy owns twice: on the host, where a call checks them, and on the device, where kernels read them.
class Twins {
 public:
  /// Copies the host's elements to both; gives where they are on the host. What is on the device already stays there.
  template <class Data> Data keep(const Data& data) {
    using T = std::remove_cvref_t<decltype(*data.data)>;
    if (data.memory == Memory::device || data.size == 0) return data;
    const std::span<const T> from(data.data, static_cast<std::size_t>(data.size));
    auto here = std::make_shared<std::unique_ptr<T[]>>(new T[from.size()]);
    std::copy(from.begin(), from.end(), here->get());
    auto there = std::make_shared<DeviceArray<T>>(from);
    Data kept = data;
    kept.data = here->get();
    pairs_.push_back({kept.data, there->data(), std::move(here), std::move(there)});
    return kept;
  }
  /// The device's copy of what keep() gave.
  template <class Data> Data there(const Data& data) const {
    Data moved = data;
    for (const Pair& p : pairs_)
      if (p.host == data.data) {
        moved.data = static_cast<decltype(data.data)>(p.device);
        moved.memory = Memory::device;
      }
    return moved;
  }

 private:
  struct Pair {
    const void *host, *device;
    std::shared_ptr<const void> keeps_host, keeps_device;
  };
  std::vector<Pair> pairs_;
};

/// A policy that owns its data on the host and on the device: calls check the one and compute with the other. Copies
/// share both.
template <class P> class OnDevice {
  static constexpr bool is_mask = role_of<P>() == Role::mask;

 public:
  static constexpr Role role = role_of<P>();
  static constexpr const char* name = policy_name<P>();
  using OnHost = P;

  explicit OnDevice(const P& policy)
      : twins_(std::make_shared<Twins>()), host_(mha::with_data(policy, [this](const auto& data) {
          if constexpr (requires { data.memory; })
            return twins_->keep(data);
          else
            return data;
        })) {}

  bool operator()(Index b, Index h, Index q, Index k) const requires(is_mask) { return host_(b, h, q, k); }
  template <class T>
  requires(!is_mask) T operator()(T s, Index b, Index h, Index q, Index k) const { return host_(s, b, h, q, k); }

  auto prepared(const CallShape& shape) const {
    return mha::with_data(mha::prepared(host_, shape), [this](const auto& data) {
      if constexpr (requires { data.memory; })
        return twins_->there(data);
      else
        return data;
    });
  }
  const P& on_host() const { return host_; }

 private:
  std::shared_ptr<Twins> twins_;
  P host_;
};

/// What a kernel of the call reads beside tensors is on the current device.
///
/// Errors    ShapeError that names both devices
template <class Call> void require_data_here(const Call& call) {
  const auto check_at = [](const char* what, const void* p) {
    if (p != nullptr) require_device_pointer("attention", what, p);
  };
  const auto check_data = [&](const auto& data) {
    if constexpr (requires { data.memory; })
      if (data.memory == Memory::device && data.size > 0) check_at("the data of a mask or score", data.data);
    return data;
  };
  static_cast<void>(mha::with_data(call.mask, check_data));
  static_cast<void>(mha::with_data(call.score, check_data));
  check_at("a Sink", call.sink.data);
}

/// RelativeBias as kernels read it: distances from `reach` on are in one bucket, so that a short table serves all.
struct DistanceTable {
  static constexpr Role role = Role::score;
  static constexpr bool adds_table = true;
  Borrowed<float> by_distance;  ///< (Hq, 2·reach + 1)
  Index reach = 0;

  template <class T> MHA_HOST_DEVICE constexpr T operator()(T s, Index, Index h, Index q, Index k) const {
    const Index distance = k - q < -reach ? -reach : k - q > reach ? reach : k - q;
    return s + by_distance.data[std::ptrdiff_t{h} * (2 * reach + 1) + reach + distance];
  }
  template <class F> DistanceTable with_data(F&& f) const { return {f(by_distance), reach}; }
};

/// The table of a RelativeBias, on the host.
///
/// Errors    ShapeError if the buckets do not fit together, or reach so far that no Index counts the distances
inline std::vector<float> table_by_distance(const RelativeBias& bias) {
  const Index heads = bias.heads(), reach = bias.buckets().max_distance;
  const std::int64_t elements = heads * (2 * std::int64_t{reach} + 1);
  constexpr Index most = std::numeric_limits<Index>::max();
  mha::detail::require(elements <= most, "RelativeBias: max_distance ", reach, " both ways and ", heads, " heads are ",
                       elements, " distances, the limit on a device is ", most);
  std::vector<float> table;
  table.reserve(static_cast<std::size_t>(elements));
  for (Index h = 0; h < heads; ++h)
    for (Index distance = -reach; distance <= reach; ++distance) table.push_back(bias(0.f, 0, h, 0, distance));
  return table;
}

class DeviceRelativeBias {
 public:
  static constexpr Role role = Role::score;
  using OnHost = RelativeBias;
  explicit DeviceRelativeBias(const RelativeBias& bias)
      : host_(bias),
        table_(std::make_shared<const DeviceArray<float>>(std::span<const float>(table_by_distance(bias)))) {}

  template <class T> T operator()(T s, Index b, Index h, Index q, Index k) const { return host_(s, b, h, q, k); }
  DistanceTable prepared(const CallShape& shape) const {
    host_.check(shape.heads);
    return {Borrowed<float>(table_->data(), static_cast<Index>(table_->size()), Memory::device),
            host_.buckets().max_distance};
  }
  const RelativeBias& on_host() const { return host_; }

 private:
  RelativeBias host_;
  std::shared_ptr<const DeviceArray<float>> table_;
};

class DeviceAlibiSlopes {
 public:
  static constexpr Role role = Role::score;
  using OnHost = AlibiSlopes;
  explicit DeviceAlibiSlopes(const AlibiSlopes& slopes)
      : host_(slopes), slopes_(std::make_shared<const DeviceArray<float>>(std::span<const float>(slopes.per_head()))) {}

  template <class T> T operator()(T s, Index b, Index h, Index q, Index k) const { return host_(s, b, h, q, k); }
  AlibiSlopes::Prepared prepared(const CallShape& shape) const {
    host_.check(shape.heads);
    return {Borrowed<float>(slopes_->data(), shape.heads, Memory::device)};
  }
  const AlibiSlopes& on_host() const { return host_; }

 private:
  AlibiSlopes host_;
  std::shared_ptr<const DeviceArray<float>> slopes_;
};

class DeviceSink {
 public:
  static constexpr Role role = Role::sink;
  explicit DeviceSink(const Sink& sink)
      : host_(sink), logits_(std::make_shared<const DeviceArray<float>>(std::span<const float>(sink.per_head()))) {}

  Borrowed<float> logits(Index heads) const {
    const Index count = host_.logits(heads).size;
    return Borrowed<float>(logits_->data(), count, Memory::device);
  }

 private:
  Sink host_;
  std::shared_ptr<const DeviceArray<float>> logits_;
};

}  // namespace cuda

/// The policy with its data copied to the current device, once: mha::on_device(mha::Padding{lengths}). It owns both
/// copies; the host's serves the checks of every call. A policy without data is returned as it is.
///
/// A user's policy takes part with `borrows` and `with_data(f)` (see mha/policy/mask.hpp).
/// Errors    CudaError if there is no device or no memory; ShapeError if a table does not fit together
template <class P> [[nodiscard]] auto on_device(const P& policy) {
  if constexpr (std::is_same_v<P, Sink>)
    return cuda::DeviceSink(policy);
  else if constexpr (std::is_same_v<P, RelativeBias>)
    return cuda::DeviceRelativeBias(policy);
  else if constexpr (std::is_same_v<P, AlibiSlopes>)
    return cuda::DeviceAlibiSlopes(policy);
  else if constexpr (std::is_same_v<P, BlockSparse>)
    return cuda::OnDevice<BlockSparseView>(policy.view());
  else if constexpr (Borrows<P> && detail::HasData<P>)
    return cuda::OnDevice<P>(policy);
  else
    return policy;
}
template <class A, class B> auto on_device(const And<A, B>& m) { return And{on_device(m.a), on_device(m.b)}; }
template <class A, class B> auto on_device(const Or<A, B>& m) { return Or{on_device(m.a), on_device(m.b)}; }
template <class A> auto on_device(const Not<A>& m) {
  auto part = on_device(m.a);
  return Not<decltype(part)>{part};
}
template <class A, class B> auto on_device(const Chain<A, B>& s) {
  return Chain{on_device(s.first), on_device(s.second)};
}

/// On the device that a backend names.
template <class P, cuda::NamesDevice B> [[nodiscard]] auto on_device(const P& policy, const B& backend) {
  const auto held = backend.enter();
  return on_device(policy);
}

}  // namespace mha::inline MHA_NAMESPACE
