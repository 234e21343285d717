#!/bin/bash
# run.sh drill [NAME...] | torture SECONDS: builds the extension into a private copy of the
# installed Postgres, and runs the drills or the torture on servers and etcd members of their own.
# Nothing of the system is touched. Root hands it all to the user postgres.
#
# DRILLS_POSTGRES: the bin directory of a Postgres that has the extension, to build nothing.
# DRILLS_KEEP: set, to keep what the servers wrote although all went well.
set -euo pipefail

repo=$(cd "$(dirname "$0")/../.." && pwd)
what=${1:-}
case $what in
    drill | torture) shift ;;
    *) echo "usage: $0 drill [NAME...] | torture SECONDS" >&2; exit 2 ;;
esac
# shellcheck source=tools/lib.sh
. "$repo/tools/lib.sh"
cd "$repo"

tmp=$(mktemp -d "/tmp/snowflake-$what.XXXXXX") # short: Unix sockets' paths have 107 characters
chmod 755 "$tmp"
run=$tmp/run
mkdir "$run"

finish() {
    local status=$?
    trap - EXIT
    cd /
    stop_leftovers
    if [ "$status" = 0 ] && [ -z "${DRILLS_KEEP:-}" ]; then
        rm -rf "$tmp"
    else
        rm -rf "${tmp:?}/usr" "${tmp:?}/src"
        echo "What the servers wrote is kept in $run"
    fi
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

make -s -C test/drills programs PG_CONFIG="$PG_CONFIG"
if [ -n "${DRILLS_POSTGRES:-}" ]; then
    bin=$DRILLS_POSTGRES
else
    mkdir "$tmp/src"
    tar --exclude='*.o' --exclude='*.so' --exclude='*.d' -cf - Makefile snowflake.control src sql |
        tar -C "$tmp/src" -xf -
    make_private_tree "$tmp"
    if ! make -s -C "$tmp/src" -j"$jobs" PG_CONFIG="$PG_CONFIG" install DESTDIR="$tmp" \
        >"$run/build.log" 2>&1; then
        tail -n 50 "$run/build.log" >&2
        exit 1
    fi
    bin=$tmp$("$PG_CONFIG" --bindir)
fi
pgxs=$(dirname "$("$PG_CONFIG" --pgxs)")/../..
mkdir "$tmp/programs"
cp build/drills/{clockshim.so,clockctl,mint,audit} "$tmp/programs/"
cp -r test/drills "$tmp/drills"
cp -r test/t/lib "$tmp/lib"
chmod -R a+rX "$tmp"
[ "$server_user" = "$(id -un)" ] || chown -R "$server_user" "$run"

cd "$run"
# The servers' own Postgres comes first in PATH. Not exec: what is left over is for finish.
"${server_prefix[@]}" env -i PATH="$bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin" HOME="$run" \
    TMPDIR="$run" USER="$server_user" LANG=C.UTF-8 TZ=UTC TESTDIR="$run" \
    DRILLS_PROGRAMS="$tmp/programs" DRILLS_RUN="$run" \
    SEED="${SEED:-}" RATE="${RATE:-}" FAULTS="${FAULTS:-}" EVERY="${EVERY:-}" \
    PERL5LIB="$tmp/drills/lib:$tmp/lib:$pgxs/src/test/perl" \
    perl "$tmp/drills/$what.pl" "$@"
