# SPDX-License-Identifier: Apache-2.0
# Flags for building the project itself, never passed on to its users: warnings and sanitizers.
add_library(attndrop_build_flags INTERFACE)

if(ATTNDROP_DEVELOPER)
  target_compile_options(attndrop_build_flags INTERFACE
    -Wall -Wextra -Wpedantic -Werror -Wshadow -Wconversion
    -Wundef -Wcast-align -Wnon-virtual-dtor -Woverloaded-virtual -Wimplicit-fallthrough
    -Wmissing-declarations
    # g++ 12 also warns of an array whose bound is an int constant.
    "$<$<CXX_COMPILER_ID:Clang>:-Wsign-conversion>"
    "$<$<CXX_COMPILER_ID:GNU>:-Wno-sign-conversion>"
    # clang 19 finds a deprecated function inside the std::stable_sort of g++ 12.
    "$<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>"
    # g++ 12 takes branches that cannot be reached for reads out of bounds; the sanitizers know better.
    "$<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds>")
endif()

if(ATTNDROP_SANITIZE)
  target_compile_options(attndrop_build_flags INTERFACE
    "-fsanitize=${ATTNDROP_SANITIZE}" -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(attndrop_build_flags INTERFACE "-fsanitize=${ATTNDROP_SANITIZE}")
endif()
