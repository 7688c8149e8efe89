# SPDX-License-Identifier: Apache-2.0
# Instances of kernels: sources that the build makes from the rows of a tuning table. The C++ side is src/gpu/common/tuning_table.hpp,
# by which the compiler checks the names and the number of rows that are read here.

# fovea_row_names(VARIABLE HEADER TABLE): the strings in the definition of a table, up to its semicolon. Each row has one: its name.
function(fovea_row_names variable header table)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
  file(READ ${header} text)
  string(REGEX REPLACE "//[^\n]*" "" text "${text}")
  string(REGEX MATCH " ${table} = [^;]*" text "${text}")
  string(REGEX MATCHALL "\"[^\"]*\"" names "${text}")
  string(REPLACE "\"" "" names "${names}")
  if(NOT names)
    message(FATAL_ERROR "${header}: found no table ${table} with named rows")
  endif()
  set(${variable} ${names} PARENT_SCOPE)
endfunction()

# fovea_instances(VARIABLE FOLDER SUFFIX TABLE [DTYPE...]): for each row of a table in FOLDER/tuning.hpp, and each dtype, a source from
# the template FOLDER/instance.SUFFIX.in. Appends their paths, which are instances/[DTYPE_]ROW.SUFFIX in the build tree, to a list.
function(fovea_instances variable folder suffix TABLE)
  set(type_of_f16 __half)
  set(type_of_bf16 __nv_bfloat16)
  set(type_of_e4m3 __nv_fp8_e4m3)
  fovea_row_names(names ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/tuning.hpp ${TABLE})
  list(LENGTH names ROWS)
  set(sources ${${variable}})
  foreach(ROW IN LISTS names)
    set(instances ${ROW})
    if(ARGN)
      set(instances ${ARGN})
      list(TRANSFORM instances APPEND _${ROW})
    endif()
    foreach(instance IN LISTS instances)
      string(REGEX MATCH "^[a-z0-9]+" dtype ${instance})
      set(TYPE ${type_of_${dtype}})
      set(source ${CMAKE_CURRENT_BINARY_DIR}/${folder}/instances/${instance}.${suffix})
      configure_file(${folder}/instance.${suffix}.in ${source} @ONLY)
      list(APPEND sources ${source})
    endforeach()
  endforeach()
  set(${variable} ${sources} PARENT_SCOPE)
endfunction()
