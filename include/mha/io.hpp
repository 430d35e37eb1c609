// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Front door of the component mha::io: checkpoints from files. Needs nlohmann_json.
// clang-format off
#include "macros_begin.hpp"
// clang-format on

#include "io/bert.hpp"
#include "io/checkpoint.hpp"
#include "io/config_file.hpp"
#include "io/decoder_config.hpp"
#include "io/gemma.hpp"
#include "io/gpt2.hpp"
#include "io/llama.hpp"
#include "io/mapped_file.hpp"
#include "io/rotary_config.hpp"
#include "io/safetensors.hpp"
#include "io/safetensors_writer.hpp"
#include "io/saved_weights.hpp"
#include "io/t5.hpp"
#include "io/vit.hpp"

// clang-format off
#include "macros_end.hpp"
// clang-format on
