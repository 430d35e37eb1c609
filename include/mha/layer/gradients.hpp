// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../block/gradients.hpp"
#include "../core/view.hpp"
#include "parameters.hpp"

namespace mha::inline MHA_NAMESPACE {

/// Named views of a layer's gradients: those of its parameters, and of a Sink's logits.
///
/// Shapes    those of ParameterViews; flat() has the parameters. sink (Hq), null data without a Sink
template <class A> struct LayerGradientViews : ParameterViews<A> { TensorView<A, 1> sink; };

namespace detail {

template <class T> struct PartsOf<ParameterViews<T>> {
  template <class F, class... V> static void each(const F& f, V&... v) {
    f("query", v.query.heads...), f("query bias", v.query.bias...), f("key", v.key.heads...);
    f("key bias", v.key.bias...), f("value", v.value.heads...), f("value bias", v.value.bias...);
    f("output", v.output.weight...), f("output bias", v.output.bias...);
    f("query_norm", v.query_norm...), f("key_norm", v.key_norm...), f("gate", v.gate...);
  }
};
template <class A> struct PartsOf<LayerGradientViews<A>> {
  template <class F, class... V> static void each(const F& f, V&... v) {
    PartsOf<ParameterViews<A>>::each(f, v...);
    f("sink", v.sink...);
  }
};

}  // namespace detail

template <class A> using LayerGradients = BlockGradients<A, LayerGradientViews<A>>;

}  // namespace mha::inline MHA_NAMESPACE
