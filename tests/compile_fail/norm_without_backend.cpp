// SPDX-License-Identifier: Apache-2.0
// expect: mha: the second template argument is no backend: LayerNorm<float, mha::Cpu>
#include <mha/block.hpp>

#ifdef MHA_FAIL
mha::RmsNorm<float, mha::Causal> norm({.width = 8});
#else
mha::RmsNorm<float, mha::Reference> norm({.width = 8});
#endif
