// SPDX-License-Identifier: Apache-2.0
// The last include of every front door: macros are again what they were before macros_begin.hpp.
#if defined(MHA_MACROS_ASIDE)
#pragma pop_macro("min")
#pragma pop_macro("max")
#pragma pop_macro("near")
#pragma pop_macro("far")
#pragma pop_macro("small")
#pragma pop_macro("slots")
#pragma pop_macro("I")
#pragma pop_macro("check")
#pragma pop_macro("require")
#pragma pop_macro("MHA_MACROS_ASIDE")
#endif
