# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./dev lint, by well-kept linters and what this repository alone can check.

readonly FILE_LINES=400 FUNCTION_LINES=60 PARAMETERS=6 SUBJECT_CHARACTERS=72
readonly CODE=(.hpp .h .cpp .c .cu .cuh .hip)

files() { python3 -B tools/repository.py "$@"; }
clang_format() { files "${CODE[@]}" | xargs clang-format-14 "$@"; }
ruff() { "$VENV/bin/ruff" "$@" . $(grep -lE '^#!.*python' tools/* 2>/dev/null); }

check_clang_format() {
  local unformatted
  unformatted=$(clang_format --dry-run -Werror 2>&1 | sed -nE 's/^([^:]+):[0-9]+:[0-9]+: error.*/\1/p' | sort -u)
  [[ -z $unformatted ]] || { printf '%s\n' "$unformatted" "run ./dev lint --fix"; return 1; }
}

# Positional parameters in Python are ruff's: pyproject.toml.
check_sizes() {
  local status=0
  files "${CODE[@]}" .py .cmake .sh CMakeLists.txt dev | xargs wc -l \
    | awk -v most=$FILE_LINES '$1 > most && $2 != "total" { print; long = 1 } END { exit long }' \
    || { say "files of more than $FILE_LINES lines"; status=1; }
  files "${CODE[@]}" | lizard -l cpp -a $PARAMETERS || status=1
  files .py | lizard -l python || status=1
  return $status
}

# lizard ARG...: names functions that are too long, of the files in its input. CUDA and HIP are C++ to it.
lizard() {
  "$VENV/bin/python" -c 'import lizard_languages as l; l.CLikeReader.ext += ["cu", "cuh", "hip"]
import sys, lizard; sys.exit(lizard.main())' -w -C 999 -T nloc=$FUNCTION_LINES -f /dev/stdin "$@"
}

# Checks the commits since the last release, or those that origin lacks; nothing where neither is known.
check_subjects() {
  local base
  base=$(git merge-base HEAD origin/main 2>/dev/null || git describe --tags --abbrev=0 2>/dev/null) || return 0
  git log --format='%h %s' "$base..HEAD" \
    | awk -v most=$SUBJECT_CHARACTERS '{ h = $1; sub(/^[^ ]+ /, "") } length > most { print h, $0; long = 1 }
                                       END { exit long }' || { say "subjects of more than $SUBJECT_CHARACTERS characters"; return 1; }
}

lint() {
  check "Lint: C and C++ formatting" check_clang_format
  check "Lint: Python formatting" ruff format --check --diff
  check "Lint: Python" ruff check
  check "Lint: dependency rule and licence lines" tools/check_includes
  check "Lint: words" tools/check_words
  check "Lint: code in documents" tools/check_docs
  check "Lint: sizes" check_sizes
  check "Lint: subjects of commits" check_subjects
}

fix() {
  clang_format -i
  ruff format -q
  ruff check -q --fix
  docs
}
