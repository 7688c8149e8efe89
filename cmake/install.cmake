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

# A static library leaves its own dependencies to the program that links it; its package looks for them.
set(FOVEA_STATIC_DEPENDENCIES "")
get_target_property(fovea_type fovea TYPE)
get_target_property(fovea_libraries fovea LINK_LIBRARIES)
foreach(dependency IN ITEMS "OpenMP COMPONENTS CXX" Threads CUDAToolkit)
  string(REGEX MATCH "^[A-Za-z]+" namespace ${dependency})
  string(REPLACE CUDAToolkit CUDA namespace ${namespace})
  if(fovea_type STREQUAL "STATIC_LIBRARY" AND fovea_libraries MATCHES "${namespace}::")
    string(APPEND FOVEA_STATIC_DEPENDENCIES "find_dependency(${dependency})\n")
  endif()
endforeach()

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/foveaConfig.cmake.in ${PROJECT_BINARY_DIR}/foveaConfig.cmake
                              INSTALL_DESTINATION ${fovea_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/foveaConfigVersion.cmake VERSION ${PROJECT_VERSION}
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/foveaConfig.cmake ${PROJECT_BINARY_DIR}/foveaConfigVersion.cmake
        DESTINATION ${fovea_package_dir})
