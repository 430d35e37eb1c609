// SPDX-License-Identifier: Apache-2.0
// The least that is a source of keys and values, and what is nearly one.
#include <type_traits>

#include <mha/cache/kv_source.hpp>

namespace source_archetype {

using mha::Index, mha::KvRun;

struct Sizes {
  Index batch() const;
  Index heads() const;
  Index dim() const;
  Index value_dim() const;
  Index keys(Index b) const;
};

class Least : public Sizes {
 public:
  using Scalar = float;
  Least() = delete;
  KvRun<float> run(Index b, Index g, Index begin, Index end) const;
};

struct NoLengths {
  using Scalar = float;
  Index batch() const;
  Index heads() const;
  Index dim() const;
  Index value_dim() const;
  KvRun<float> run(Index, Index, Index, Index) const;
};
struct NoScalar : Sizes {
  KvRun<float> run(Index, Index, Index, Index) const;
};
struct OtherScalar : Sizes {
  using Scalar = double;
  KvRun<float> run(Index, Index, Index, Index) const;
};
struct NotConst : Sizes {
  using Scalar = float;
  KvRun<float> run(Index, Index, Index, Index);
};
struct NoEnd : Sizes {
  using Scalar = float;
  KvRun<float> run(Index, Index, Index) const;
};
struct ReturnsReference : Sizes {
  using Scalar = float;
  const KvRun<float>& run(Index, Index, Index, Index) const;
};

static_assert(mha::KvSource<Least> && mha::KvSource<mha::ContiguousKv<float>>);
static_assert(!mha::KvSource<NoScalar> && !mha::KvSource<OtherScalar> && !mha::KvSource<NotConst>);
static_assert(!mha::KvSource<NoLengths> && !mha::KvSource<NoEnd> && !mha::KvSource<ReturnsReference> &&
              !mha::KvSource<int>);

// What moves to a device by value.
static_assert(std::is_trivially_copyable_v<mha::ContiguousKv<float>> && std::is_trivially_copyable_v<KvRun<float>>);

}  // namespace source_archetype
