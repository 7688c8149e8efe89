# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./dev test: one test, or all that a change must pass.

# run_ctest FOLDER ARG...
run_ctest() {
  ctest --test-dir "$1" --parallel "$jobs" --output-on-failure --no-tests=error \
    --output-junit "$PWD/$1/ctest.xml" "${@:2}"
}

# pytest_with VENV BUILD REPORT ARG...: several processes, each with few threads and no compile workers.
pytest_with() {
  PYTHONPATH="$2/python" OMP_NUM_THREADS=2 TORCHINDUCTOR_COMPILE_THREADS=1 "$1/bin/python" \
    -m pytest -q -p no:cacheprovider --numprocesses $((jobs < 8 ? jobs : 8)) --dist worksteal \
    --junitxml "${@:3}"
}
run_pytest() { pytest_with "$VENV" "$BUILD" "$@"; }

# third_of_cases COMMAND...: with a third of each googletest. The hash of the commit chooses it: a shallow clone has it too.
third_of_cases() {
  local hash
  hash=$(git rev-parse --short=7 HEAD 2>/dev/null) || hash=0
  GTEST_TOTAL_SHARDS=3 GTEST_SHARD_INDEX=$((16#$hash % 3)) "$@"
}

# sanitized PRESET NAMES CASES TARGET...: builds, then runs the tests whose names match, by CASES if that names a command.
sanitized() {
  local preset=$1 names=$2 cases=$3
  if step "Building with $preset" build "build/$preset" "$preset" "${@:4}"; then
    suite "Tests under $preset" "build/$preset/ctest.xml" ${cases:+"$cases"} run_ctest "build/$preset" --tests-regex "$names"
  else
    failed=$((failed + 1))
  fi
}

# has TOOL: whether the release build found the compiler of a kind of GPU.
has() { grep -q "^FOVEA_$1:FILEPATH=/" "$BUILD/CMakeCache.txt" 2>/dev/null; }

# check_compiled TOOL TITLE PROGRAM: compares with the record what the compiler made of the kernels.
check_compiled() {
  if has "$1"; then
    PATH=$PATH:$(printf '%s:' "$PWD/$VENV"/lib/python*/site-packages/nvidia/*/bin) \
      check "$2" "$3" --build "$BUILD"
  else
    say "$2: the compiler of these kernels is not here"
    skipped=$((skipped + 1))
  fi
}

run_everything() {
  if [[ ${1:-} != --full ]]; then PRESET=test BUILD=build/test; fi
  export OMP_WAIT_POLICY=passive  # tests run beside each other: threads that wait must not keep a core
  lint
  test_site
  suite "Tests of the tools, and of a kernel's protocol" build/tools.xml \
    run_pytest build/tools.xml tests/tools tests/protocol
  if step "Building the library, its tests and the PyTorch binding" build_release; then
    # The support table lists every backend.
    if has NVCC && has HIP_CLANG; then
      check "Lint: support table in documents" tools/check_docs --program "$BUILD/cli/fovea"
    fi
    suite "C++ and C tests" "$BUILD/ctest.xml" run_ctest "$BUILD"
    suite "Python tests" build/pytest.xml run_pytest build/pytest.xml tests/python
    test_transformers "$NEWEST_TRANSFORMERS"
    test_vllm
    test_sglang
  else
    failed=$((failed + 1))
  fi
  test_wheel
  check_compiled NVCC "CUDA: registers, shared memory, spills and MMAs" tools/check_kernels
  check_compiled HIP_CLANG "HIP: registers, LDS, scratch, occupancy and MFMAs" tools/check_hip_kernels
  if [[ ${1:-} != --quick ]]; then
    local cases=third_of_cases
    if [[ ${1:-} == --full ]]; then cases=; fi
    sanitized asan . "$cases"
    sanitized tsan '^(behaviour|conformance)' "$cases" fovea_behaviour_test fovea_conformance
  fi
  show_times
  summary
}

# run_one PRESET NAME [ARG...]: one test, in sight.
run_one() {
  local preset=$1 file
  file=$(python3 -B tools/run_test.py --python "$2") && { run_python "$file" "${@:3}"; return; }
  step "Configuring $preset" cmake --preset "$preset" \
    && python3 -B tools/run_test.py "build/$preset" "${@:2}"
}

# run_python FILE[::CASE] [ARG...]
run_python() {
  setup_python
  if [[ $1 == tests/python/* ]]; then
    step "Building the PyTorch binding" build build/python python fovea_torch || return
  fi
  PYTHONPATH=build/python/python "$VENV/bin/python" -m pytest -q -p no:cacheprovider "$@"
}
