// SPDX-License-Identifier: Apache-2.0
// expect only: mha: BiasGradient writes its table, and this one is const
#include <mha/mha.hpp>

#ifdef MHA_FAIL
auto result(const mha::Tensor<float, 2>& table) { return mha::BiasGradient(table); }
#else
auto result(mha::Tensor<float, 2>& table) { return mha::BiasGradient(table); }
#endif
