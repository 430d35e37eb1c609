// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include <mha/io.hpp>

#include "language_model.hpp"

namespace generate {

/// The weights of the family that config.json names, of which models on B are made. `facts` has what is said of using
/// any of them. It is compiled in families_cpu.cpp and families_systolic.cpp.
template <mha::Backend B>
OpenedModel open_family(const std::filesystem::path& folder, const mha::ConfigFile& config, ModelFacts facts,
                        Weights scalar);

}  // namespace generate
