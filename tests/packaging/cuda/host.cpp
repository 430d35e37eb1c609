// SPDX-License-Identifier: Apache-2.0
// What of the component the host's compiler can read.
#include <mha/backend/cuda/device_tensor.hpp>

std::size_t bytes_of(const mha::DeviceTensor<float, 4>& tensor) { return tensor.size() * sizeof(float); }
