// SPDX-License-Identifier: Apache-2.0
// Macros of X11 and of C's complex numbers, which a program may have read before our headers.
#include <Eigen/Core>

#define Always 2
#define Bool int
#define False 0
#define I _Complex_I
#define None 0L
#define Status int
#define Success 0
#define True 1

#include <mha/block.hpp>
#include <mha/eigen.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>
