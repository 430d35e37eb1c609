// SPDX-License-Identifier: Apache-2.0
// The policies of a layer that its own weights depend on.
#pragma once

#include <mha/layer/policies.hpp>

namespace support {

template <class Projection, class Norm = mha::NoNorm, class Concat = mha::ConcatHeads, class Output = mha::LinearOutput>
using OwnPolicies = mha::LayerPolicies<mha::MultiHead, mha::Full, mha::NoScore, mha::NoSink, Norm, mha::NoPosition,
                                       Projection, Concat, Output>;

}  // namespace support
