#!/bin/bash
# check.sh: builds everything with warnings as errors and runs every test, touching nothing of the
# system but missing Debian packages.
# check.sh unit|regress|tap|sim|binary [name...]: one suite, or some tests of it
#     unit 'Generator*'      regress decode      tap test/t/010_mint.pl
# shellcheck disable=SC2317 # functions that are handed to others as commands
set -euo pipefail

# Regress tests (sql/<name>.sql) by what they need: nothing but CREATE EXTENSION, or a server that
# has snowflake preloaded, and a real etcd behind it.
REGRESS_PLAIN=(install decode ranges unloaded)
REGRESS_PRELOAD=(mint privileges settings status)

repo=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=tools/lib.sh
. "$repo/tools/lib.sh"
cd "$repo"

suite=${1:-all}
[ $# -eq 0 ] || shift
names=("$@")
case $suite in
    all | unit | regress | tap | sim | binary) ;;
    *) echo "usage: $0 [unit|regress|tap|sim|binary [name...]]" >&2; exit 2 ;;
esac
wants() { [ "$suite" = all ] || [ "$suite" = "$1" ]; }

tools/packages.sh check

# Everything lives below $tmp, which the servers' user can read: it may be unable to read the repo.
tmp=$(mktemp -d "${TMPDIR:-/tmp}/snowflake-check.XXXXXX")
chmod 755 "$tmp"
if ! as_server test -x "$tmp"; then # a TMPDIR for root's eyes only
    rmdir "$tmp"
    tmp=$(mktemp -d /tmp/snowflake-check.XXXXXX)
    chmod 755 "$tmp"
fi
src=$tmp/src # what tests read
run=$tmp/run # what they write
log=$tmp/log # what they print
bin=$tmp$("$PG_CONFIG" --bindir)
pgxs=$(dirname "$("$PG_CONFIG" --pgxs)")/../..
mkdir "$src" "$run" "$run/home" "$run/tmp" "$log"

passed=0 failed=0 skipped=0 summed_up=

finish() {
    local status=$?
    trap - EXIT
    set +e # nothing may keep it from stopping servers
    stop_leftovers
    if [ "$status" = 0 ]; then
        rm -rf "$tmp"
    else
        rm -rf "$src" "${tmp:?}/usr"
        [ -n "$summed_up" ] || echo "check.sh: stopped; logs are in $log" >&2
    fi
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP PIPE

# run LOG COMMAND...: in the background, since bash answers no signal while it waits for a command
# in the foreground; with job control, since a background job without it cannot be interrupted.
run() {
    local to=$1 pid
    shift
    set -m
    "$@" </dev/null >"$to" 2>&1 &
    pid=$!
    set +m
    wait "$pid"
}

# in_tests SECONDS COMMAND...: as the servers' user, in the copy of the repo, with the private
# Postgres, and with nothing of the caller's environment that could change what a test sees.
in_tests() {
    local seconds=$1 status=0
    shift
    cd "$src" && as_server env -i PATH="$bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin" HOME="$run/home" \
        TMPDIR="$run/tmp" USER="$server_user" LANG=C.UTF-8 TZ=UTC "${test_env[@]}" \
        timeout -k 10 "$seconds" "$@" || status=$?
    [ "$status" != 124 ] || echo "stopped: it ran for $seconds s"
    return "$status"
}
test_env=()

# result NAME PASSED FAILED SKIPPED LOG: counts a suite. One that ran nothing has failed.
result() {
    local bad=$3
    [ $(($2 + $3 + $4)) -gt 0 ] || bad=1
    passed=$((passed + $2)) failed=$((failed + bad)) skipped=$((skipped + $4))
    printf '%s passed' "$2"
    [ "$4" = 0 ] || printf ', %s skipped' "$4"
    [ "$bad" = 0 ] || printf ', %s FAILED' "$bad"
    printf ' (%ss)\n' $((SECONDS - started))
    if [ "$bad" != 0 ] && [ -e "$5" ]; then
        echo "--- the end of $5"
        tail -n 60 "$5"
        echo "---"
    fi
}
# excerpt LOG GREP-ARGUMENT...: repeats what failed at the end of a log, where it is shown.
excerpt() {
    local text
    text=$(grep "${@:2}" "$1" | head -n 45) || true
    [ -z "$text" ] || printf '\n%s\n' "$text" >>"$1"
}
announce() {
    started=$SECONDS
    printf '%-40s ' "$1"
}

# build NAME COMMAND...: what the tests need. Nothing can be tested without it.
build() {
    announce "build: $1"
    if run "$log/build-$1.log" "${@:2}"; then
        echo "ok ($((SECONDS - started))s)"
    else
        failed=$((failed + 1))
        echo "FAILED"
        tail -n 50 "$log/build-$1.log"
        summary
    fi
}

summary() {
    local line="$passed passed, $failed failed"
    [ "$skipped" = 0 ] || line+=", $skipped skipped"
    [ "$failed" = 0 ] || echo "Logs: $log; what the tests wrote: $run"
    summed_up=yes
    echo "$line"
    [ "$failed" = 0 ] || exit 1
    exit 0
}

# The extension is built in a copy: objects of an ordinary `make` came without -Werror.
copy_sources() {
    local file
    mkdir -p "$1"
    tar --exclude=./.git --exclude=./build --exclude='*.o' --exclude='*.so' --exclude='*.d' -cf - . |
        tar -C "$1" -xf -
    find "$1" -type f ! -name '*.o' ! -name '*.so' ! -name '*.d' -printf '%P\n' | while read -r file; do
        [ -e "$file" ] || rm "$1/$file"
    done
}
build_extension() {
    local make=(make -s -C build/extension -j"$jobs" PG_CONFIG="$PG_CONFIG" WERROR=-Werror)
    # Chained, since `set -e` is off in a function whose result is asked for.
    copy_sources build/extension && make_private_tree "$tmp" &&
        "${make[@]}" && "${make[@]}" install DESTDIR="$tmp"
}

# Two checks at once in one tree would build into each other's objects.
mkdir -p build
exec 9>build/lock
flock 9
if wants regress || wants tap || wants binary; then build extension build_extension; fi
if wants unit; then build unit make -s -C test -j"$jobs" unit; fi
if wants sim; then build sim make -s -C test/sim -j"$jobs"; fi
if wants tap; then
    build idcheck make -s -C test idcheck
    build clockshim make -s -C test/drills clockshim
fi
mkdir -p "$src/build"
tar --exclude='*.o' --exclude='*.d' -cf - sql expected test | tar -C "$src" --no-same-owner -xf -
for file in build/idcheck build/sim/sim build/drills/{clockshim.so,clockctl,slowdns.so}; do
    [ ! -e "$file" ] || install -D "$file" "$src/$file"
done
if [ -d build/unit ]; then (cd build && find unit -name unit_tests | tar -cf - -T -) | tar -C "$src/build" -xf -; fi
exec 9>&-
chmod -R a+rX "$tmp"
[ "$server_user" = "$(id -un)" ] || chown -R "$server_user" "$run"

# ---- what the libraries show to the process that loads them

# expect NAME COMMAND...: one check, whose command prints what is wrong, and nothing when all is right.
expect() {
    local file
    announce "$1"
    file=$log/check.log
    if "${@:2}" >"$file" 2>&1 && [ ! -s "$file" ]; then
        result "$1" 1 0 0 "$file"
    else
        result "$1" 0 1 0 "$file"
    fi
}
foreign_symbols() {
    nm -D --defined-only "$1" | awk '{ print $NF }' |
        grep -vE '^(Pg_magic_func|_PG_init|_PG_fini|_init|_fini|pg_finfo_snowflake_[a-z_]+|snowflake_[a-z_]+)$' || true
}
static_constructors() { nm "$1" | grep -E '_GLOBAL__sub_I|__cxa_atexit' || true; }
# The one of pgEdge has the same name.
installs_over_another() {
    local other=$tmp/other make=(make -s -C build/extension PG_CONFIG="$PG_CONFIG" DESTDIR="$tmp/other")
    local control=$other$("$PG_CONFIG" --sharedir)/extension/snowflake.control goal
    mkdir -p "${control%/*}"
    echo "comment = 'another'" >"$control"
    for goal in install uninstall; do
        "${make[@]}" "$goal" >"$log/$goal.log" 2>&1 && echo "make $goal went through"
        grep -q 'belongs to another extension' "$log/$goal.log" || cat "$log/$goal.log"
    done
    [ "$(cat "$control")" = "comment = 'another'" ] || echo "its control file was touched"
    find "$other" -type f ! -path "$control"
}
links_curl() { readelf -d "$1" | grep 'NEEDED.*libcurl' || true; }

if wants binary; then
    lib=$tmp$("$PG_CONFIG" --pkglibdir)
    expect 'binary: snowflake exports only SQL' foreign_symbols "$lib/snowflake.so"
    expect 'binary: the worker exports only SQL' foreign_symbols "$lib/snowflake_worker.so"
    expect 'binary: no static constructor' static_constructors "$lib/snowflake.so"
    expect 'binary: backends load no libcurl' links_curl "$lib/snowflake.so"
    expect 'install: refuses over another snowflake' installs_over_another
fi

# ---- unit

unit() {
    local variant=$1 file=$log/unit-$1.log good bad skip status=0
    local command=("$src/build/unit/$variant/unit_tests" --gtest_color=no)
    [ ${#names[@]} = 0 ] || command+=("--gtest_filter=$(IFS=: && echo "${names[*]}")")
    # With the kernel's widest address randomisation g++ 12's ThreadSanitizer finds no place for
    # its shadow memory.
    if [ "$variant" = tsan ] && setarch -R true 2>/dev/null; then command=(setarch -R "${command[@]}"); fi
    announce "unit: $variant"
    run "$file" in_tests 300 "${command[@]}" || status=$?
    good=$(grep -c '^\[       OK \]' "$file") || true
    skip=$(grep -c '^\[  SKIPPED \].*ms)$' "$file") || true
    bad=$(grep -c '^\[  FAILED  \].*ms)$' "$file") || true
    # It died, or a sanitizer spoke up after the last test.
    if [ "$status" != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
    excerpt "$file" -B 12 '^\[  FAILED  \].*ms)$'
    result "unit: $variant" "$good" "$bad" "$skip" "$file"
}
if wants unit; then
    for variant in plain tsan asan; do unit "$variant"; done
fi

# ---- the simulator: so many schedules, a promise broken in none of them

if wants sim; then
    schedules=100000
    announce "sim: $schedules schedules"
    if run "$log/sim.log" in_tests 600 "$src/build/sim/sim" --schedules "$schedules"; then
        result sim 1 0 0 "$log/sim.log"
    else
        result sim 0 1 0 "$log/sim.log"
    fi
fi

# ---- regress

# regress NAME CONFIG TEST...: pg_regress with a server of its own, configured by the file CONFIG
regress() {
    local name=$1 config=$2 file=$log/regress-$1.log out=$run/regress-$1 good bad status=0
    shift 2
    as_server mkdir -p "$out"
    announce "regress: $name"
    run "$file" in_tests 600 "$pgxs/src/test/regress/pg_regress" --bindir="$bin" --inputdir="$src" \
        --outputdir="$out" --temp-instance="$out/instance" --temp-config="$config" \
        --no-locale --encoding=UTF8 "$@" || status=$?
    good=$(sed -nE 's/^.*All ([0-9]+) tests passed.*$/\1/p' "$file")
    bad=$(sed -nE 's/^.*\<([0-9]+) of [0-9]+ tests failed.*$/\1/p' "$file")
    if [ -n "$bad" ]; then
        good=$(($# - bad))
        cat "$out/regression.diffs" >>"$file"
    elif [ "$status" != 0 ] || [ -z "$good" ]; then
        good=0 bad=1
        cat "$out"/log/*.log >>"$file" 2>/dev/null || true
    fi
    result "regress: $name" "${good:-0}" "${bad:-0}" 0 "$file"
}
# chosen TEST...: those of them that the command line names, or all
chosen() {
    local test
    for test in "$@"; do
        if [ ${#names[@]} = 0 ] || [[ " ${names[*]} " == *" $test "* ]]; then echo "$test"; fi
    done
}
unlisted() {
    local file test
    for file in sql/*.sql; do
        test=$(basename "$file" .sql)
        [[ $test == snowflake--* ]] ||
            [[ " ${REGRESS_PLAIN[*]} ${REGRESS_PRELOAD[*]} " == *" $test "* ]] ||
            echo "$file is in no list at the top of tools/check.sh: it never runs"
    done
}
if wants regress; then
    expect 'regress: every file is in a list' unlisted
    mapfile -t tests < <(chosen "${REGRESS_PLAIN[@]}")
    if [ ${#tests[@]} -gt 0 ]; then
        : >"$tmp/plain.conf"
        regress plain "$tmp/plain.conf" "${tests[@]}"
    fi
    mapfile -t tests < <(chosen "${REGRESS_PRELOAD[@]}")
    if [ ${#tests[@]} -gt 0 ]; then
        as_server mkdir "$run/etcd"
        start_etcd "$run/etcd" "$log/etcd.log"
        cat >"$tmp/preload.conf" <<END
shared_preload_libraries = 'snowflake'
snowflake.etcd_endpoints = '$etcd_url'
snowflake.max_clock_error = 0   # test machines are not synchronised
END
        regress preload "$tmp/preload.conf" "${tests[@]}"
        stop_etcd "$run/etcd"
    fi
fi

# ---- TAP

# tap FILE: one file under prove, with a folder and a time limit of its own
tap() {
    local name good=0 bad=0 skip=0 status=0 file
    name=$(basename "$1" .pl)
    file=$log/tap-$name.log
    announce "tap: $name"
    test_env=(PERL5LIB="$pgxs/src/test/perl:$src/test/t/lib" PG_REGRESS="$pgxs/src/test/regress/pg_regress"
        TESTDIR="$run/tap/$name" TESTDATADIR="$run/tap/$name/tmp_check" TESTLOGDIR="$run/tap/$name/tmp_check/log"
        IDCHECK="$src/build/idcheck" DRILLS_PROGRAMS="$src/build/drills" SNOWFLAKE_FULL="${SNOWFLAKE_FULL:-}")
    as_server mkdir -p "$run/tap/$name"
    run "$file" in_tests 900 prove --norc --merge -v "test/t/$name.pl" || status=$?
    good=$(sed -nE 's/^Files=1, Tests=([0-9]+),.*$/\1/p' "$file")
    bad=$(sed -nE 's/^.*\(Wstat: .* Failed: ([0-9]+)\)$/\1/p' "$file")
    good=${good:-0} bad=${bad:-0}
    skip=$(grep -cE '^ok [0-9]+ # skip' "$file") || true
    good=$((good - bad - skip))
    # It died, planned more than it ran, or hung.
    if [ "$status" != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
    if [ "$status" = 0 ] && grep -q '^1\.\.0 # SKIP' "$file"; then skip=1; fi
    excerpt "$file" -A 12 '^not ok'
    result "tap: $name" "$good" "$bad" "$skip" "$file"
    stop_leftovers
    [ "$bad" != 0 ] || rm -rf "$run/tap/$name"
}
if wants tap; then
    # One at a time: some measure time and CPU.
    if [ ${#names[@]} = 0 ]; then names=(test/t/*.pl); fi
    for file in "${names[@]}"; do tap "$file"; done
fi

summary
