// SPDX-License-Identifier: Apache-2.0
/// AMX-BF16: matrix products on tiles. Everything else is as with AVX-512 and vdpbf16ps.
#pragma once

#include "cpu/isa/avx512bf16.hpp"
