# SPDX-License-Identifier: Apache-2.0
# The compiler of the presets: clang 19 where there is one, else the system's default; ccache too.
if(NOT DEFINED CMAKE_CXX_COMPILER)
  find_program(ATTNDROP_CLANG NAMES clang++-19)
  if(ATTNDROP_CLANG)
    set(CMAKE_CXX_COMPILER "${ATTNDROP_CLANG}")
  endif()
endif()

# Copies of the tree share what they have in common: paths count relative to the top of each.
find_program(ATTNDROP_CCACHE NAMES ccache)
if(ATTNDROP_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
    env "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" CCACHE_NOHASHDIR=1 "${ATTNDROP_CCACHE}")
endif()
