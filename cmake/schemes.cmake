# SPDX-License-Identifier: Apache-2.0
# Turns the files of src/schemes/ into the list of schemes that the library compiles: adding a file
# adds a scheme.
#
# Writes generated/scheme_includes.inc (one #include line per file) and generated/scheme_types.inc
# (the type names, comma separated: keep_apart.h holds attndrop::schemes::KeepApart).

function(attndrop_write_scheme_list output_dir)
  file(GLOB scheme_files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/schemes/*.h")
  list(SORT scheme_files)
  set(includes "")
  set(types "")
  foreach(scheme_file IN LISTS scheme_files)
    get_filename_component(name "${scheme_file}" NAME_WE)
    if(NOT name MATCHES "^[a-z][a-z0-9_]*$")
      message(FATAL_ERROR "src/schemes/${name}.h: the name of a scheme file is lower case letters, "
                          "digits and '_', starting with a letter; rename the file")
    endif()
    string(REPLACE "_" ";" words "${name}")
    set(type "")
    foreach(word IN LISTS words)
      string(SUBSTRING "${word}" 0 1 first)
      string(SUBSTRING "${word}" 1 -1 rest)
      string(TOUPPER "${first}" first)
      string(APPEND type "${first}${rest}")
    endforeach()
    string(APPEND includes "#include \"schemes/${name}.h\"\n")
    list(APPEND types "schemes::${type}")
  endforeach()
  list(JOIN types ",\n" types)
  file(CONFIGURE OUTPUT "${output_dir}/scheme_includes.inc" CONTENT "${includes}" @ONLY)
  file(CONFIGURE OUTPUT "${output_dir}/scheme_types.inc" CONTENT "${types}\n" @ONLY)
endfunction()
