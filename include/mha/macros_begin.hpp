// SPDX-License-Identifier: Apache-2.0
// The first include of every front door: puts aside macros of other headers that are names here, until the door's last
// include, macros_end.hpp, defines them again. It is read as often as there are doors, one within another too.
//
// min, max, near, far, small   <windows.h>
// slots                        Qt
// I                            <complex.h>
// check, require               Unreal Engine, <AssertMacros.h>
#pragma push_macro("MHA_MACROS_ASIDE")
#undef MHA_MACROS_ASIDE
#define MHA_MACROS_ASIDE
#pragma push_macro("min")
#pragma push_macro("max")
#pragma push_macro("near")
#pragma push_macro("far")
#pragma push_macro("small")
#pragma push_macro("slots")
#pragma push_macro("I")
#pragma push_macro("check")
#pragma push_macro("require")
#undef min
#undef max
#undef near
#undef far
#undef small
#undef slots
#undef I
#undef check
#undef require
