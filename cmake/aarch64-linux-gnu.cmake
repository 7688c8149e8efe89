# SPDX-License-Identifier: Apache-2.0
# A toolchain file: 64-bit Arm on a Debian machine of another kind, with its cross compiler, and its tests under qemu.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
# The packages of {fmt} and its like describe headers here, which serve both machines.
file(GLOB CMAKE_PREFIX_PATH /usr/lib/*-linux-gnu/cmake)
