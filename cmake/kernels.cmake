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
