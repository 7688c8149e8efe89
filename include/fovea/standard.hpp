// SPDX-License-Identifier: Apache-2.0
/// The demands of the other headers on the compiler, so that an older standard fails with one sentence.
#pragma once

#if (defined(_MSVC_LANG) ? _MSVC_LANG : __cplusplus) < 202002L
#error "Fovea's headers need C++20: compile with -std=c++20 (MSVC: /std:c++20)"
#endif
