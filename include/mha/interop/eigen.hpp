// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

#include "../config.hpp"
#include "../core/check.hpp"
#include "../core/scalar.hpp"
#include "../core/view.hpp"

/// What is named of Eigen here. Its headers take time to compile: a unit that has Eigen objects includes them itself,
/// before this file or after it.
namespace Eigen {
template <class> class DenseBase;
template <class> class PlainObjectBase;
template <class, int, int, int, int, int> class Matrix;
template <class, int, class> class Map;
template <class, int, int, bool> class Block;
template <class, int> class VectorBlock;
template <class> class Transpose;
struct half;
struct bfloat16;
namespace internal {
template <class, int> struct compute_default_alignment;
}
}  // namespace Eigen

namespace mha::inline MHA_NAMESPACE {

namespace detail {

/// A segment() of a vector, a base class of which names a Block instead of it.
template <class D> constexpr bool is_segment = false;
template <class X, int size> constexpr bool is_segment<Eigen::VectorBlock<X, size>> = true;

/// Matrix, Array, Map, Ref, Block, VectorBlock …: whatever has coefficients in memory.
template <class D>
concept EigenInMemory = (std::derived_from<D, Eigen::DenseBase<D>> || is_segment<D>)&&requires(D& d) {
  { d.data() } -> std::convertible_to<const typename D::Scalar*>;
  { d.innerStride() } -> std::convertible_to<std::ptrdiff_t>;
  { d.outerStride() } -> std::convertible_to<std::ptrdiff_t>;
};

/// Eigen::Dynamic, Eigen::RowMajor and Eigen::LvalueBit.
constexpr int eigen_dynamic = -1, eigen_row_major = 1;
constexpr unsigned eigen_lvalue = 0x20;

/// EIGEN_DEFAULT_ALIGN_BYTES: the alignment of memory that Eigen allocates, by the unit's flags or by
/// EIGEN_MAX_ALIGN_BYTES if that is more.
template <class T> constexpr int alignment_of_eigen() {
#if defined(EIGEN_DONT_VECTORIZE)
  constexpr int of_flags = 0;
#else
  constexpr int of_flags = MHA_UNIT_NUMBER == 4 ? 64 : MHA_UNIT_NUMBER > 1 ? 32 : 16;  // AVX-512, AVX
#endif
  constexpr int given = Eigen::internal::compute_default_alignment<T, eigen_dynamic>::value;
  return given > of_flags ? given : of_flags;
}

/// Eigen's inline functions have the same name in every unit, whatever the unit's flags: where the alignment of its
/// memory differs, the linker may join a function that allocates with one that frees otherwise. Units that hand Eigen
/// objects of T over are refused by the linker then, as a multiple definition of a symbol that names the remedy: the
/// same -march=, or -DEIGEN_MAX_ALIGN_BYTES=64 in all of them.
template <class T> void one_alignment_of_eigen() {
#if defined(__ELF__) && !MHA_NVCC
#define MHA_SYMBOL "mha_all_units_with_Eigen_need_one_march_or_EIGEN_MAX_ALIGN_BYTES"
  // Each alignment has a section group of its own, of which the linker keeps one copy.
  asm volatile(".ifndef " MHA_SYMBOL "\n.pushsection .rodata." MHA_SYMBOL ",\"aG\",%%progbits," MHA_SYMBOL
               "_%c0,comdat\n.globl " MHA_SYMBOL "\n.hidden " MHA_SYMBOL "\n" MHA_SYMBOL
               ":\n.byte 0\n.popsection\n.endif"
               :
               : "i"(alignment_of_eigen<T>()));
#undef MHA_SYMBOL
#endif
}

/// Whether coefficients stay where they are when the object, a temporary say, is gone: Map, Block, Transpose …, but no
/// matrix, and no Ref to const, which may hold a copy of its own.
template <class D>
constexpr bool points_elsewhere = !std::derived_from<D, Eigen::PlainObjectBase<D>> && (D::Flags & eigen_lvalue) != 0;
template <class D> constexpr bool points_into = std::derived_from<D, Eigen::PlainObjectBase<D>> || points_elsewhere<D>;
template <class X, int options, class Stride>
constexpr bool points_elsewhere<Eigen::Map<const X, options, Stride>> = true;
template <class X, int rows, int columns, bool inner>
constexpr bool points_elsewhere<Eigen::Block<const X, rows, columns, inner>> = points_into<X>;
template <class X, int size> constexpr bool points_elsewhere<Eigen::VectorBlock<const X, size>> = points_into<X>;
template <class X> constexpr bool points_elsewhere<Eigen::Transpose<const X>> = points_into<X>;

}  // namespace detail

/// An Eigen object as a view with axes (rows, cols); its storage order becomes the strides, nothing is copied.
///
/// Eigen's default is column-major: the kernels want rows that are contiguous along the last axis and pack others once.
template <detail::EigenInMemory D> struct ViewTraits<D> {
  using Scalar = typename D::Scalar;
  static constexpr int rank = 2;
  static constexpr bool borrows = detail::points_elsewhere<D>;
  static constexpr Memory memory = Memory::host;

  template <class Owner> static auto view(Owner& m) {
    detail::one_alignment_of_eigen<Scalar>();
    using Pointer = decltype(m.data());
    using T = std::remove_pointer_t<Pointer>;
    const std::ptrdiff_t inner = m.innerStride(), outer = m.outerStride();
    return TensorView<T, 2>{m.data(),
                            {detail::as_extent(m.rows()), detail::as_extent(m.cols())},
                            {D::IsRowMajor ? outer : inner, D::IsRowMajor ? inner : outer}};
  }

  /// Results are row-major: rows are positions and stay contiguous.
  static auto make(Index rows, Index cols) {
    constexpr int any = detail::eigen_dynamic;
    return Eigen::Matrix<Scalar, any, any, detail::eigen_row_major, any, any>(rows, cols);
  }
};

template <> struct ScalarTraits<Eigen::half> { using Accumulator = float; };
template <> struct ScalarTraits<Eigen::bfloat16> { using Accumulator = float; };

}  // namespace mha::inline MHA_NAMESPACE
