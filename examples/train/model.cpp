// SPDX-License-Identifier: Apache-2.0
#include "model.hpp"

namespace train {

template class Model<float>;

}  // namespace train
