# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./dev torch, ./dev transformers, ./dev vllm, ./dev sglang: other versions of them than the pinned ones.

readonly NEWEST_TRANSFORMERS=5.24.0  # its tests run with the pinned version and with this one
readonly VLLM=0.26.0  # its Python files drive the tests of the backend
readonly SGLANG=(0.5.13 0.5.23)  # the oldest and the newest that the backend knows
readonly OLDEST_TORCH=2.11.0  # as pyproject.toml and src/torch/CMakeLists.txt promise

# newest PACKAGE: the version that pip would install here: constraints of the machine count.
newest() {
  "$VENV/bin/pip" install --quiet --dry-run --no-deps --ignore-installed --report - "$1" \
    | "$VENV/bin/python" -c 'import json, sys; print(json.load(sys.stdin)["install"][0]["metadata"]["version"])'
}

# The wheel is built with the pinned version and runs with each; who builds from source has their own.
test_torch() {
  local version folder
  if (($# == 0)); then set -- "$OLDEST_TORCH" "$(newest torch)"; fi
  step "Building the PyTorch binding as a wheel has it" build_release fovea_torch || die "the build failed"
  for version in "$@"; do
    folder=build/torch-$version
    setup_python "$folder/venv" "$version"
    suite "The wheel's binding with PyTorch $version" "$folder/wheel.xml" pytest_with "$folder/venv" "$BUILD" "$folder/wheel.xml" \
      tests/python/test_operators.py tests/python/test_errors.py
    if step "Building the PyTorch binding with PyTorch $version" build "$folder/release" python \
      fovea_torch -- -DFOVEA_BUILD_CLI=OFF "-DPython3_EXECUTABLE=$PWD/$folder/venv/bin/python"; then
      suite "Python tests with PyTorch $version" "$folder/tests.xml" pytest_with "$folder/venv" "$folder/release" "$folder/tests.xml" tests/python
    else
      failed=$((failed + 1))
    fi
  done
  summary
}

# test_transformers [VERSION]: in a folder before the pinned version; the packages that it needs stay. Inductor's code is the same with each.
test_transformers() {
  local version=${1:-$(newest transformers)}
  local folder=build/transformers-$version
  if [[ -d $folder/transformers ]] || step "Installing transformers $version" install_beside "$folder" "transformers==$version"; then
    suite "Tests with transformers $version" "$folder/tests.xml" pytest_with "$VENV" "$folder:$BUILD" "$folder/tests.xml" \
      -k 'not inductor' tests/python/test_transformers*.py tests/python/test_continuous_batching.py
  else
    failed=$((failed + 1))
  fi
}

# test_vllm [VERSION]: of vLLM only its Python files, without its kernels and without CUDA.
test_vllm() {
  local version=${1:-$VLLM}
  local folder=build/vllm-$version
  if [[ -d $folder/site/vllm ]] || step "Fetching the Python files of vLLM $version" fetch_vllm "$folder" "$version"; then
    suite "Tests with vLLM $version" "$folder/tests.xml" pytest_with "$VENV" "$folder/site:$folder/packages:$BUILD" "$folder/tests.xml" \
      tests/python/test_vllm*.py
  else
    failed=$((failed + 1))
  fi
}

fetch_vllm() {
  "$VENV/bin/pip" install --disable-pip-version-check --quiet --no-deps --target "$1/packages" -r tools/requirements-vllm.txt \
    && no_platform "$1/site" && "$VENV/bin/python" tools/fetch_python_files.py "vllm==$2" "$1/site"
}

# no_platform FOLDER: a plug-in of vLLM by which it finds no GPU. Its platform of GPUs needs the kernels; the tests take tensors there.
no_platform() {
  local info=$1/no_platform-0.dist-info
  mkdir -p "$info"
  printf 'Metadata-Version: 2.1\nName: no-platform\nVersion: 0\n' > "$info/METADATA"
  printf '[vllm.platform_plugins]\nnone = no_platform:none\n' > "$info/entry_points.txt"
  printf 'def none() -> str:\n    return "vllm.platforms.interface.UnspecifiedPlatform"\n' > "$1/no_platform.py"
}

# test_sglang [VERSION..]: likewise.
test_sglang() {
  local version folder
  if (($# == 0)); then set -- "${SGLANG[@]}"; fi
  for version in "$@"; do
    folder=build/sglang-$version
    if [[ -d $folder/sglang ]] \
      || step "Fetching the Python files of SGLang $version" "$VENV/bin/python" tools/fetch_python_files.py "sglang==$version" "$folder"; then
      suite "Tests with SGLang $version" "$folder/tests.xml" pytest_with "$VENV" "$folder:$BUILD" "$folder/tests.xml" \
        tests/python/test_sglang*.py
    else
      failed=$((failed + 1))
    fi
  done
}

install_beside() {
  "$VENV/bin/pip" install --disable-pip-version-check --quiet --no-deps --target "$1" "$2"
}
