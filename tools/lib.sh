# shellcheck shell=bash disable=SC2034 # variables are used by those who source it
# What check.sh and demo.sh share. Sourced after `set -euo pipefail`, with $repo set.

# Both are started by make and call make themselves; its jobserver is not theirs to join.
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES

PG_CONFIG=${PG_CONFIG:-pg_config}
# The others are meant for somebody's own servers: PGPORT would even move ours.
for name in "${!PG@}"; do
    [ "$name" = PG_CONFIG ] || unset "$name"
done
jobs=$(nproc)

# Servers refuse to run as root, so root hands them to the user that Debian's package made.
if [ "$(id -u)" = 0 ]; then
    server_user=postgres
    server_prefix=(setpriv --reuid="$server_user" --regid="$server_user" --init-groups --)
else
    server_user=$(id -un)
    server_prefix=()
fi
as_server() { "${server_prefix[@]}" "$@"; }

# leftovers, stop_leftovers: what still runs below $tmp. Processes are found by where they work or where
# their program is: test programs kill -9 their servers' parents, and freeze some, so no list of pids
# would be complete.
leftovers() {
    find /proc/[0-9]*/cwd /proc/[0-9]*/exe -maxdepth 0 -lname "$tmp/*" 2>/dev/null | cut -d/ -f3 | sort -u
}
stop_leftovers() {
    local signal pid try
    for signal in INT KILL; do # INT: Postgres stops fast and gives its shared memory back
        for pid in $(leftovers); do
            kill -s "$signal" "$pid" 2>/dev/null || true
            kill -s CONT "$pid" 2>/dev/null || true
        done
        for try in {1..25}; do
            [ -n "$(leftovers)" ] || return 0
            sleep 0.2
        done
        : "$try"
    done
}

# make_private_tree DIR: a Postgres that finds its files below DIR, so that the system's stays
# untouched. A server looks for its share and lib folders relative to its own binary, with symbolic
# links resolved: copies are needed, links would lead back to the system. Debian's bitcode is left
# out (22 MB that only a JIT of C functions reads), and so is a snowflake that is installed there.
make_private_tree() {
    local dir
    for dir in "$("$PG_CONFIG" --bindir)" "$("$PG_CONFIG" --pkglibdir)" "$("$PG_CONFIG" --sharedir)"; do
        mkdir -p "$1$dir"
        tar -C "$dir" --exclude=./bitcode --exclude='./snowflake*' --exclude='./extension/snowflake*' \
            -cf - . | tar -C "$1$dir" --no-same-owner -xf -
    done
}

# free_port FROM: the first port from FROM on that nothing on 127.0.0.1 answers at.
free_port() {
    local port=$1
    while (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
    echo "$port"
}

# start_etcd DIR LOG: one etcd member on 127.0.0.1, its data and pid file in DIR; sets etcd_url.
# Compaction is on because every renewal makes a revision and etcd keeps them all by default.
start_etcd() {
    local port peer
    port=$(free_port $((23000 + RANDOM % 5000)))
    peer=$(free_port $((port + 1)))
    etcd_url=http://127.0.0.1:$port
    # ETCD_UNSUPPORTED_ARCH: etcd 3.4 starts on ARM only when told so; elsewhere it is not read.
    # shellcheck disable=SC2016 # the inner bash expands it
    # setsid: a Ctrl-C in this terminal, or its end, is not meant for etcd.
    setsid "${server_prefix[@]}" env -i PATH="$PATH" ETCD_UNSUPPORTED_ARCH=arm64 bash -c \
        'echo $$ >"$1/pid" && exec etcd --name demo --data-dir "$1/data" \
            --listen-client-urls "$2" --advertise-client-urls "$2" \
            --listen-peer-urls "$3" --initial-advertise-peer-urls "$3" \
            --initial-cluster "demo=$3" --auto-compaction-mode periodic --auto-compaction-retention 5m' \
        etcd "$1" "$etcd_url" "http://127.0.0.1:$peer" </dev/null >"$2" 2>&1 &
    local try
    for try in {1..150}; do
        sleep 0.2
        if ETCDCTL_API=3 etcdctl --endpoints "$etcd_url" endpoint health >/dev/null 2>&1; then return 0; fi
        # Most likely the port was taken between the look and the start.
        if [ "$try" -gt 5 ] && ! etcd_pid "$1" >/dev/null; then break; fi
    done
    echo "etcd did not start" >>"$2"
    return 1
}

# etcd_pid DIR: the pid of the etcd started in DIR, if that process is still this etcd: a pid file
# outlives a reboot, and the number may belong to somebody else by then.
etcd_pid() {
    local pid
    pid=$(cat "$1/pid" 2>/dev/null) || return 1
    tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF -- "--data-dir $1/data " || return 1
    echo "$pid"
}

stop_etcd() {
    local pid try
    pid=$(etcd_pid "$1") || return 0
    kill "$pid" || return 0
    for try in {1..50}; do
        [ -e "/proc/$pid" ] || return 0
        sleep 0.1
    done
    kill -9 "$pid" || true
    : "$try"
}
