# SPDX-License-Identifier: Apache-2.0
# Whether the build has the HIP backend: FOVEA_HIP becomes ON or OFF. clang compiles the kernels from builtins alone; nothing of ROCm is
# needed to build, and its runtime is found when the library runs.
set(FOVEA_HIP AUTO CACHE STRING "Build the HIP backend: AUTO (when clang++ 19 or newer and ld.lld are found), ON or OFF")
set_property(CACHE FOVEA_HIP PROPERTY STRINGS AUTO ON OFF)
set(FOVEA_HIP_TARGETS gfx90a gfx942)
set(fovea_hip_wanted ${FOVEA_HIP})

if(FOVEA_HIP)
  set(FOVEA_HIP OFF)
  find_program(FOVEA_HIP_CLANG NAMES clang++-19 clang++ DOC "The compiler of the HIP kernels")
  if(FOVEA_HIP_CLANG)
    execute_process(COMMAND ${FOVEA_HIP_CLANG} --version OUTPUT_VARIABLE clang_version)
    string(REGEX MATCH "version ([0-9]+)" clang_version "${clang_version}")
    if(CMAKE_MATCH_1 VERSION_GREATER_EQUAL 19)
      execute_process(COMMAND ${FOVEA_HIP_CLANG} --print-prog-name=lld OUTPUT_VARIABLE lld OUTPUT_STRIP_TRAILING_WHITESPACE)
      if(IS_ABSOLUTE "${lld}")
        set(FOVEA_HIP ON)
      endif()
    endif()
  endif()
  if(NOT FOVEA_HIP AND NOT fovea_hip_wanted STREQUAL AUTO)
    message(FATAL_ERROR "FOVEA_HIP: got ${fovea_hip_wanted}, but there is no clang++ of version 19 or newer with lld; "
                        "install clang-19 and lld-19, or name one with -DFOVEA_HIP_CLANG=...")
  endif()
endif()
message(STATUS "HIP backend: ${FOVEA_HIP}")
if(FOVEA_HIP)
  # Custom commands compile the kernels, so they name the compiler cache that CMake's rules for C++ use by themselves.
  set(FOVEA_HIP_CLANG ${CMAKE_CXX_COMPILER_LAUNCHER} ${FOVEA_HIP_CLANG})
endif()
