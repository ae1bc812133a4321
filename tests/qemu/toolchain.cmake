# SPDX-License-Identifier: Apache-2.0
# Builds for arm64 with clang and Debian's cross libraries; qemu runs what was built.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER clang++-19)
set(CMAKE_CXX_COMPILER_TARGET aarch64-linux-gnu)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
include("${CMAKE_CURRENT_LIST_DIR}/../../cmake/toolchain.cmake")
