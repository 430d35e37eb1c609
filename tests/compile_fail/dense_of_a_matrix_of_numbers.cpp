// SPDX-License-Identifier: Apache-2.0
// expect: numbers to add are an mha::AdditiveBias
#include <Eigen/Core>

#include <mha/mha.hpp>

const Eigen::MatrixXf numbers(4, 4);

#ifdef MHA_FAIL
mha::Dense mask{numbers};
#else
mha::AdditiveBias bias{numbers};
#endif
