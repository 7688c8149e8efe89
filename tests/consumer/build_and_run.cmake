# SPDX-License-Identifier: Apache-2.0
# Installs the build into a fresh prefix, builds tests/consumer/project against it, and runs what came out.
# cmake -DBUILD=<build folder> -DSOURCE=<tests/consumer/project> -DGENERATOR=<name> -P build_and_run.cmake
set(scratch ${BUILD}/consumer)
file(REMOVE_RECURSE ${scratch})

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}: exit status ${status}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${scratch}/prefix --component Unspecified) # not the Python extension
run(${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE} -B ${scratch}/build -DCMAKE_PREFIX_PATH=${scratch}/prefix
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)
run(${CMAKE_COMMAND} --build ${scratch}/build)
run(${scratch}/build/consumer_cpp)
run(${scratch}/build/consumer_c)
run(${scratch}/prefix/bin/fovea --help)
