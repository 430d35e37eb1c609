// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include <mha/systolic.hpp>

#include "families.hpp"

namespace generate {

template OpenedModel open_family<mha::Systolic<>>(const std::filesystem::path&, const mha::ConfigFile&, ModelFacts,
                                                  Weights);

}  // namespace generate
