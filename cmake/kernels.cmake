# SPDX-License-Identifier: Apache-2.0
# The tile kernels: src/kernels/kernels.cc is compiled once for each instruction set, by Highway. Its
# lowest target on x86-64 is SSE4; a machine without it takes the reference path, so only this file
# is compiled for it.
find_package(hwy REQUIRED)

target_link_libraries(attndrop PRIVATE hwy::hwy)
set(kernel_flags -O3 -fno-math-errno)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  list(APPEND kernel_flags -msse4.2 -maes -mpclmul)
endif()
set_source_files_properties("${PROJECT_SOURCE_DIR}/src/kernels/kernels.cc"
  PROPERTIES COMPILE_OPTIONS "${kernel_flags}")

# Instructions that Highway does not know have files of their own; their functions are called where
# the processor has them. g++ 12 takes the undefined vectors of its own headers for mistakes.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  set(avx512_flags -O3 -fno-math-errno -mavx512f -mavx512bw -mavx512vl -mavx512dq)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND avx512_flags -Wno-maybe-uninitialized -Wno-uninitialized)
  endif()
  set_source_files_properties("${PROJECT_SOURCE_DIR}/src/kernels/bf16_kernels.cc"
    PROPERTIES COMPILE_OPTIONS "${avx512_flags};-mavx512bf16")
  set_source_files_properties("${PROJECT_SOURCE_DIR}/src/kernels/keep_words_gfni.cc"
    PROPERTIES COMPILE_OPTIONS "${avx512_flags};-mavx512vbmi;-mgfni")
endif()
