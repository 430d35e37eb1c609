// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Front door of the component mha::openmp: the executor OpenMp, for mha::CpuWith<mha::OpenMp>.
#include "backend/openmp.hpp"
#include "mha.hpp"
