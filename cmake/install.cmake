# SPDX-License-Identifier: Apache-2.0
# `cmake --install`: headers, library, the fovea program, and what find_package(fovea) reads.
include(CMakePackageConfigHelpers)

set(fovea_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/fovea)

install(TARGETS fovea EXPORT foveaTargets)
if(TARGET fovea_cli)
  install(TARGETS fovea_cli)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/fovea DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/fovea)
install(EXPORT foveaTargets NAMESPACE fovea:: DESTINATION ${fovea_package_dir})

# A static library leaves its own dependencies to the program that links it: to find_package(fovea) and pkg-config by name.
set(FOVEA_DEPENDENCIES "")
set(FOVEA_CXX_RUNTIME "")
set(FOVEA_PRIVATE_LIBRARIES "")
get_target_property(fovea_type fovea TYPE)
if(fovea_type STREQUAL "STATIC_LIBRARY")
  get_target_property(libraries fovea LINK_LIBRARIES)
  if(libraries MATCHES "OpenMP::")
    list(APPEND FOVEA_DEPENDENCIES OpenMP)
    list(TRANSFORM OpenMP_CXX_LIB_NAMES PREPEND -l OUTPUT_VARIABLE FOVEA_PRIVATE_LIBRARIES)
  else()
    list(APPEND FOVEA_DEPENDENCIES Threads)
    list(APPEND FOVEA_PRIVATE_LIBRARIES -pthread)
  endif()
  if(libraries MATCHES "CUDA::")
    list(APPEND FOVEA_DEPENDENCIES CUDAToolkit)
    list(APPEND FOVEA_PRIVATE_LIBRARIES ${CUDA_cudart_static_LIBRARY} -lpthread -ldl -lrt)
  endif()
  # Libraries that a C++ compiler links unasked and a C compiler does not.
  set(FOVEA_CXX_RUNTIME ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
  list(REMOVE_ITEM FOVEA_CXX_RUNTIME ${CMAKE_C_IMPLICIT_LINK_LIBRARIES})
  list(TRANSFORM FOVEA_CXX_RUNTIME PREPEND -l OUTPUT_VARIABLE runtime)
  list(APPEND FOVEA_PRIVATE_LIBRARIES ${runtime})
endif()
list(JOIN FOVEA_PRIVATE_LIBRARIES " " FOVEA_PRIVATE_LIBRARIES)

file(RELATIVE_PATH includedir ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(${CMAKE_CURRENT_LIST_DIR}/fovea.pc.in ${PROJECT_BINARY_DIR}/fovea.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/fovea.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/foveaConfig.cmake.in ${PROJECT_BINARY_DIR}/foveaConfig.cmake
                              INSTALL_DESTINATION ${fovea_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/foveaConfigVersion.cmake VERSION ${PROJECT_VERSION}
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/foveaConfig.cmake ${PROJECT_BINARY_DIR}/foveaConfigVersion.cmake
        DESTINATION ${fovea_package_dir})
