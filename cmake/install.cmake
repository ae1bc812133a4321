# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where. Components: runtime (a shared library), development (headers,
# static library, CMake package, pkg-config file), cli (the tool).
include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/attndrop")

install(TARGETS attndrop EXPORT attndropTargets
  RUNTIME COMPONENT runtime
  LIBRARY COMPONENT runtime NAMELINK_COMPONENT development
  ARCHIVE COMPONENT development
  FILE_SET HEADERS COMPONENT development)
install(EXPORT attndropTargets
  NAMESPACE attndrop:: DESTINATION "${package_dir}" COMPONENT development)

configure_package_config_file(cmake/attndropConfig.cmake.in
  "${PROJECT_BINARY_DIR}/attndropConfig.cmake"
  INSTALL_DESTINATION "${package_dir}" NO_SET_AND_CHECK_MACRO)
# Below 1.0 every minor version may change the interface.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/attndropConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/attndropConfig.cmake" "${PROJECT_BINARY_DIR}/attndropConfigVersion.cmake"
  DESTINATION "${package_dir}" COMPONENT development)

# The pkg-config file finds everything from where it lies, so that the tree can be moved.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(pc_prefix "${CMAKE_INSTALL_PREFIX}")
else()
  file(RELATIVE_PATH pc_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" pc_prefix "\${pcfiledir}/${pc_prefix}")
endif()
cmake_path(APPEND pc_libdir "\${prefix}" "${CMAKE_INSTALL_LIBDIR}")
cmake_path(APPEND pc_includedir "\${prefix}" "${CMAKE_INSTALL_INCLUDEDIR}")
if(BUILD_SHARED_LIBS)
  set(pc_cflags " -DATTNDROP_SHARED")
else()
  # Who links the static library links what it needs.
  set(pc_requires "Requires: libhwy\n")
  set(pc_libs " -pthread")
endif()
configure_file(cmake/attndrop.pc.in "${PROJECT_BINARY_DIR}/attndrop.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/attndrop.pc"
  DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT development)

if(TARGET attndrop-cli)
  if(BUILD_SHARED_LIBS AND NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
    file(RELATIVE_PATH rpath "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
    set_target_properties(attndrop-cli PROPERTIES INSTALL_RPATH "$ORIGIN/${rpath}")
  endif()
  install(TARGETS attndrop-cli RUNTIME COMPONENT cli)
endif()
