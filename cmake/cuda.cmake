# SPDX-License-Identifier: Apache-2.0
# Whether the build has the CUDA backend: FOVEA_CUDA becomes ON or OFF. Nothing is linked but the static runtime, so the library
# also runs where there is no driver.
set(FOVEA_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO (when nvcc 12.8 or newer is found), ON or OFF")
set_property(CACHE FOVEA_CUDA PROPERTY STRINGS AUTO ON OFF)
set(FOVEA_CUDA_ARCHITECTURES 75 80 89 90a 100a 120 CACHE STRING "Architectures to build kernels for")
option(FOVEA_CUDA_SAMPLE "Compile each source for one of its architectures, in turn: shows in less time that all compile" OFF)
set(fovea_cuda_wanted ${FOVEA_CUDA})

if(FOVEA_CUDA)
  find_program(FOVEA_NVCC nvcc HINTS ${CMAKE_CUDA_COMPILER} ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  set(FOVEA_CUDA OFF)
  if(FOVEA_NVCC)
    execute_process(COMMAND ${FOVEA_NVCC} --version OUTPUT_VARIABLE nvcc_version)
    string(REGEX MATCH "V([0-9.]+)" nvcc_version "${nvcc_version}")
    if(CMAKE_MATCH_1 VERSION_GREATER_EQUAL 12.8)
      set(FOVEA_CUDA ON)
    endif()
  endif()
  if(NOT FOVEA_CUDA AND NOT fovea_cuda_wanted STREQUAL AUTO)
    message(FATAL_ERROR "FOVEA_CUDA: got ${fovea_cuda_wanted}, but there is no nvcc of version 12.8 or newer; name one with -DFOVEA_NVCC=...")
  endif()
endif()

if(FOVEA_CUDA)
  set(CMAKE_CUDA_COMPILER ${FOVEA_NVCC})
  set(CMAKE_CUDA_ARCHITECTURES OFF)  # each target says its own
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 does not know it
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  endif()
  find_package(CUDAToolkit REQUIRED)
endif()
message(STATUS "CUDA backend: ${FOVEA_CUDA}")
