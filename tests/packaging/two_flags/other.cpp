// SPDX-License-Identifier: Apache-2.0
#include "attend.hpp"

void attend_over_there(const Call& call) { attend(call); }
