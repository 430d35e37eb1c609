// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "../core/check.hpp"
#include "../core/view.hpp"

/// Walks over named views of parameters, and over those of their gradients beside them.
namespace mha::inline MHA_NAMESPACE::detail {

/// each(f, v...) calls f(name, a view of each v...) for all views of these named views.
template <class Views> struct PartsOf;

/// All numbers of named views, an empty span if they are borrowed.
///
/// Errors    ShapeError if it is empty
template <class T> std::span<T> in_one_row(std::span<T> all) {
  require(!all.empty(),
          "parameters: flat() has nothing to show, because the weights are borrowed and need not be in one row: read "
          "them by name");
  return all;
}

/// The flat() of named views, which are null before there are weights.
template <class T> std::span<T> flat_of(bool present, std::span<T> all) {
  require(present,
          "parameters: flat() has nothing to show, because there are no weights yet (call initialize, update or "
          "borrow), or only those that the backend packed (call borrow)");
  return in_one_row(all);
}

/// Whether one of these named views and another view, or one of the others, may show the same memory.
template <class Views, class T, int Rank> bool parts_overlap(const Views& views, const TensorView<T, Rank>& other) {
  bool any = false;
  PartsOf<Views>::each([&](const char*, const auto& v) { any = any || may_overlap(v, other); }, views);
  return any;
}
template <class Views> bool parts_overlap(const Views& views, const Views& others) {
  bool any = false;
  PartsOf<Views>::each([&](const char*, const auto& v) { any = any || parts_overlap(others, v); }, views);
  return any;
}

/// Whether G has the names of Views.
template <template <class> class Views, class A> void take_views(const Views<A>&);
template <class G, template <class> class Views>
concept HasNamesOf = requires(const G& gradients) {
  take_views<Views>(gradients);
};

/// Gradients have the shapes of the parameters that they are the gradients of, laid out as their owner's own are.
///
/// Errors    ShapeError that names the parameter and both values
template <class Gradients, class Views>
void require_gradients(const char* call, const Gradients& given, const Views& own) {
  const auto same = [call](const char* name, const auto& is, const auto& expected) {
    for (int a = 0; a < expected.rank; ++a)
      require(is.extent[a] == expected.extent[a], call, ": the gradients are of other sizes: on axis ", a, " their ",
              name, " has extent ", is.extent[a], ", expected ", expected.extent[a]);
    for (int a = 0; a < expected.rank; ++a)
      require(expected.extent[a] <= 1 || is.stride[a] == expected.stride[a], call,
              ": the gradients are of other sizes: on axis ", a, " their ", name, " has stride ", is.stride[a],
              ", expected ", expected.stride[a]);
  };
  PartsOf<Views>::each(same, given, own);
}

/// The flat() of gradients, checked against that of the parameters that they are the gradients of.
///
/// Errors    ShapeError as require_gradients(); of gradients without these names, for another size of flat()
template <template <class> class Views, class T, class Gradients>
auto checked_gradients(const char* call, const Views<T>& own, const Gradients& gradients) {
  const std::size_t expected = own.flat().size();
  const auto d = gradients.flat();
  if constexpr (HasNamesOf<Gradients, Views>) require_gradients(call, gradients, own);
  require(d.size() == expected, call, ": the gradients are ", d.size(), " numbers, expected ", expected);
  return std::span<const typename decltype(d)::element_type>(d);
}

/// step(numbers, their gradients), or the sentence for another step.
template <class T, class A, class Step> void run_step(Step& step, std::span<T> numbers, std::span<const A> gradients) {
  constexpr bool takes_spans = requires { step(std::move(numbers), std::move(gradients)); };
  static_assert(takes_spans,
                "mha: for_each(gradients, step) calls step(numbers, of_numbers) with two spans, std::span<T> and "
                "std::span<const A>, of which the second is only read: [&](auto numbers, auto of_numbers) { … } (see "
                "mha/block/parts.hpp)");
  if constexpr (takes_spans) step(std::move(numbers), std::move(gradients));
}

}  // namespace mha::inline MHA_NAMESPACE::detail
