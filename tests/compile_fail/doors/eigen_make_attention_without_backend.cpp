// SPDX-License-Identifier: Apache-2.0
// expect: for Cpu, or name mha::EigenCpu, which <mha/eigen.hpp> has
#include <mha/eigen.hpp>

const mha::Config config{.d_model = 8, .num_heads = 2};

#ifdef MHA_FAIL
const auto layer = mha::make_attention<float>(config, mha::Causal{});
#else
const auto layer = mha::make_attention<float>(config, mha::Causal{}, mha::EigenCpu{});
#endif
