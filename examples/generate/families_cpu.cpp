// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include <mha/mha.hpp>

#include "families.hpp"

namespace generate {

template OpenedModel open_family<mha::Cpu>(const std::filesystem::path&, const mha::ConfigFile&, ModelFacts, Weights);

}  // namespace generate
