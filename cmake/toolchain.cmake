# SPDX-License-Identifier: Apache-2.0
# The compiler of the presets: clang 19 where there is one, else the system's default; ccache too.
if(NOT DEFINED CMAKE_CXX_COMPILER)
  find_program(ATTNDROP_CLANG NAMES clang++-19)
  if(ATTNDROP_CLANG)
    set(CMAKE_CXX_COMPILER "${ATTNDROP_CLANG}")
  endif()
endif()

find_program(ATTNDROP_CCACHE NAMES ccache)
if(ATTNDROP_CCACHE AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${ATTNDROP_CCACHE}")
endif()
