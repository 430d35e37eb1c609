// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Eigen/Core>

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Matrix attention_over_there(const Matrix& q, const Matrix& k, const Matrix& v);
