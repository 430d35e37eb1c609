// SPDX-License-Identifier: Apache-2.0
// Classes that a program instantiates as a whole: a member that is not for their scalar is refused where it is called.
#include <mha/block.hpp>

template class mha::FeedForward<mha::bfloat16>;
template class mha::LinearMemory<mha::half, mha::Cpu, mha::Identity>;
