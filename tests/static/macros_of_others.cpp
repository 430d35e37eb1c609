// SPDX-License-Identifier: Apache-2.0
// Macros of X11, <windows.h>, Qt, Unreal Engine and C's complex numbers, which a program may have read before our
// headers. Those that are names in them are the program's again behind each.
#include <Eigen/Core>

#define Always 2
#define Bool int
#define False 0
#define I (__extension__ 1.0iF)
#define None 0L
#define Status int
#define Success 0
#define True 1
#define check(condition) static_assert(condition)
#define far
#define max(a, b) (((a) > (b)) ? (a) : (b))
#define min(a, b) (((a) < (b)) ? (a) : (b))
#define near
#define require(condition, label) \
  if (!(condition)) goto label
#define slots
#define small char

#include <mha/block.hpp>
#include <mha/eigen.hpp>
#include <mha/mha.hpp>
#include <mha/systolic.hpp>

#if !defined(I) || !defined(check) || !defined(far) || !defined(max) || !defined(min) || !defined(near) || \
    !defined(require) || !defined(slots) || !defined(small)
#error "a front door has taken a macro away"
#endif
check(min(1, 2) == 1 && max(1, 2) == 2);
