// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The version; CMake and the pkg-config file read it from here.
#define MHA_VERSION_MAJOR 0
#define MHA_VERSION_MINOR 1
#define MHA_VERSION_PATCH 0
/// To compare: #if MHA_VERSION >= 10203 is 1.2.3 or newer.
#define MHA_VERSION (MHA_VERSION_MAJOR * 10000 + MHA_VERSION_MINOR * 100 + MHA_VERSION_PATCH)
