// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The version; CMake and the pkg-config file read it from here.
#define MHA_VERSION_MAJOR 0
#define MHA_VERSION_MINOR 1
#define MHA_VERSION_PATCH 0
