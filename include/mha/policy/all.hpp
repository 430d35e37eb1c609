// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Every policy of the library, for the front doors.

#include "activation.hpp"
#include "any_scaling.hpp"
#include "concat.hpp"
#include "dropout.hpp"
#include "heads.hpp"
#include "mask.hpp"
#include "mask/block_sparse.hpp"
#include "mask/dense.hpp"
#include "mask/document.hpp"
#include "mask/first_keys.hpp"
#include "mask/padding.hpp"
#include "mask/positional.hpp"
#include "mask/prefix.hpp"
#include "output.hpp"
#include "position.hpp"
#include "projection.hpp"
#include "qk_norm.hpp"
#include "score.hpp"
#include "score/additive_bias.hpp"
#include "score/alibi.hpp"
#include "score/alibi_slopes.hpp"
#include "score/relative_bias.hpp"
#include "score/softcap.hpp"
#include "sink.hpp"
