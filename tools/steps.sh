# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Steps that ./dev runs: the output of each in a log, its time in a table, its tests counted.

readonly LOGS=build/logs
readonly TIMES=$LOGS/times.txt
passed=0 failed=0 skipped=0 steps=0

# only COMMAND OPTION ARGUMENT...: the command takes this option, or none where it is empty.
only() {
  [[ $# -eq 2 || ${*:3} == "$2" ]] || die "$1 takes ${2:+$2 or }nothing; got: ${*:3}"
}

say() { printf '%s\n' "$*"; }
die() { printf 'dev: %s\n' "$*" >&2; exit 1; }
on_terminal() { [[ -t 1 ]]; }

# Seconds of processor time that all finished steps took.
cpu_seconds() {
  local -a stat
  read -r -a stat <"/proc/$$/stat" 2>/dev/null || stat=()
  printf '%d\n' $(((${stat[15]:-0} + ${stat[16]:-0}) / $(getconf CLK_TCK)))
}

# While `pid` runs, shows the last line of its log: in place on a terminal, otherwise once a minute.
watch() {
  local pid=$1 log=$2 begin=$SECONDS shown=0 line
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.5
    line=$(tail -n 1 "$log" 2>/dev/null | tr -dc '[:print:]')
    if on_terminal; then
      printf '\r  %4d s  %-*.*s' $((SECONDS - begin)) 100 100 "$line"
    elif ((SECONDS - begin >= shown + 60)); then
      shown=$((SECONDS - begin))
      printf '  %4d s  %.120s\n' "$shown" "$line"
    fi
  done
  if on_terminal; then printf '\r%-112s\r' ''; fi
}

# step TITLE COMMAND...: runs it with its output in a log, which is shown when it fails. Returns its status.
step() {
  local title=$1 begin=$SECONDS cpu status=0 log
  shift
  cpu=$(cpu_seconds)
  steps=$((steps + 1))
  mkdir -p "$LOGS"
  if ((steps == 1)); then printf '%7s %7s  %s\n' seconds 'of CPU' step >"$TIMES"; fi
  log=$(printf '%s/%02d-%s.log' "$LOGS" "$steps" "${title//[^[:alnum:]]/-}")
  printf '%s\n' "$title"
  set -m  # a process group of its own, so that an interrupt ends all of it
  "$@" >"$log" 2>&1 </dev/null &
  local pid=$!
  set +m
  # shellcheck disable=SC2064
  trap "kill -- -$pid 2>/dev/null; exit 130" INT TERM
  watch "$pid" "$log"
  wait "$pid" || status=$?
  trap - INT TERM
  printf '%7d %7d  %s\n' $((SECONDS - begin)) $(($(cpu_seconds) - cpu)) "$title" >>"$TIMES"
  if ((status == 0)); then
    printf '  ok, %d s\n' $((SECONDS - begin))
  else
    tail -n 60 "$log" | sed 's/^/  | /'
    printf '  FAILED (status %d), %d s; all of it: %s\n' "$status" $((SECONDS - begin)) "$log"
  fi
  return "$status"
}

# check TITLE COMMAND...: one test that is a command.
check() {
  if step "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

# count ATTRIBUTE REPORT: the sum over a JUnit report of an attribute of its suites.
count() {
  echo $(($(tr '\n' ' ' 2>/dev/null <"$2" | grep -o '<testsuite [^>]*' | grep -oP "\b$1=\"\K[0-9]+" | paste -sd +)))
}

# suite TITLE REPORT COMMAND...: many tests, counted from the JUnit report that the command writes.
# A report without a test is a failure.
suite() {
  local title=$1 report=$2 status=0 tests bad left
  shift 2
  rm -f "$report"
  step "$title" "$@" || status=1
  tests=$(count tests "$report") bad=$(count '(failures|errors)' "$report") left=$(count '(skipped|disabled)' "$report")
  if ((bad == 0 && (status || tests == 0))); then bad=1; fi
  tests=$((tests > bad + left ? tests - bad - left : 0))
  printf '  %d passed, %d failed, %d skipped\n' "$tests" "$bad" "$left"
  passed=$((passed + tests)) failed=$((failed + bad)) skipped=$((skipped + left))
}

show_times() {
  printf '%7d %7d  %s\n' "$SECONDS" "$(cpu_seconds)" all >>"$TIMES"
  cat "$TIMES"
}

# The closing line; false when a test failed, or none ran.
summary() {
  local line="$passed passed, $failed failed"
  if ((skipped > 0)); then line+=", $skipped skipped"; fi
  say "$line"
  ((failed == 0 && passed > 0))
}
