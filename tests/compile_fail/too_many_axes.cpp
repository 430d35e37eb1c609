// SPDX-License-Identifier: Apache-2.0
// expect: mha: a TensorView has one to five axes
#include <mha/core/view.hpp>

#ifdef MHA_FAIL
mha::TensorView<float, 6> view;
#else
mha::TensorView<float, 5> view;
#endif
