# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./dev gpu on compute capability 10.0: the kernels of src/gpu/cuda/sm100, which no device has run
# yet. Only these steps allow them, and a kernel that hangs ends its step.

readonly BLACKWELL=cuda.sm100. BLACKWELL_REPORT=build/blackwell

has_blackwell() { nvidia-smi --query-gpu=compute_cap --format=csv,noheader | grep -q '^10\.0$'; }

# untested SECONDS COMMAND...
untested() { FOVEA_UNTESTED_BLACKWELL=1 timeout --kill-after=10 "$@"; }

# blackwell_rows TIER SECONDS: true when every row passed, and at least one did.
blackwell_rows() {
  local before=$passed wrong=$failed
  suite "Blackwell: its kernels, $1 rows" "$BLACKWELL_REPORT-$1.xml" \
    untested "$2" "$GPU_BUILD/tests/conformance/fovea_conformance" --tier "$1" --gtest_brief=1 \
    "--gtest_filter=*$BLACKWELL*" "--gtest_output=xml:$BLACKWELL_REPORT-$1.xml"
  ((passed > before && failed == wrong))
}

# Each step is worth its time only if those before it passed.
blackwell_steps() {
  local tool
  blackwell_rows quick 300 || return
  blackwell_rows full 1800 || return
  for tool in memcheck racecheck synccheck initcheck; do
    check "Blackwell: compute-sanitizer $tool" gpu_sanitizer "$tool" "$BLACKWELL" untested 1800
  done
  check "Blackwell: benchmarks" untested 600 "$GPU_BUILD/cli/fovea" bench --case attention/bench/prefill \
    --implementation "$BLACKWELL" --json "$BLACKWELL_REPORT.json"
}

# Runs the steps and prints the report for a person to send, whatever came out.
blackwell() {
  local verdict=accepted before=$failed rows=$passed
  rm -f "$BLACKWELL_REPORT.json"
  blackwell_steps
  if ((failed > before || passed == rows)); then verdict="not accepted"; fi
  if ((passed == rows && failed == before)); then failed=$((failed + 1)); fi  # every row was skipped
  say "" "Please report, with $BLACKWELL_REPORT* and $LOGS of a step that failed:"
  nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv,noheader
  say "Blackwell: $verdict; $((passed - rows)) passed, $((failed - before)) failed"
  if [[ -f $BLACKWELL_REPORT.json ]]; then tools/blackwell_roof --bench "$BLACKWELL_REPORT.json"; fi
  say ""
}
