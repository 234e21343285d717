#!/bin/bash
# demo.sh start|stop|status: a private Postgres with snowflake and a private etcd behind it, in one
# folder that `stop` removes. Nothing else on the machine is touched but what has to be installed:
# Debian packages and, as root, the extension.
set -euo pipefail

repo=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=tools/lib.sh
. "$repo/tools/lib.sh"

# No folder that others can write to: its name is known beforehand.
if [ -n "${SNOWFLAKE_DEMO_DIR:-}" ]; then
    dir=$(realpath -m "$SNOWFLAKE_DEMO_DIR")
elif [ "$(id -u)" = 0 ]; then
    dir=/var/lib/snowflake-demo
else
    dir=${XDG_STATE_HOME:-${HOME:?}/.local/state}/snowflake-demo
fi
log=$dir/log
cd / # the servers' user may be unable to enter the repo

find_postgres() { # needs the packages
    bin=$("$PG_CONFIG" --bindir)
    [ "$(id -u)" = 0 ] || bin=$dir$bin
}

running() { [ -d "$dir/data" ] && as_server "$bin/pg_ctl" -D "$dir/data" status >/dev/null 2>&1; }

stop_servers() {
    if running; then as_server "$bin/pg_ctl" -D "$dir/data" -m fast stop >/dev/null; fi
    stop_etcd "$dir/etcd"
}

how_to_connect() {
    cat <<END
  connect      psql -h $dir -U postgres demo
  logs         $log/postgres.log, $log/etcd.log
  stop         make demo-stop      (stops both servers and removes $dir)
END
}

# step TEXT LOG COMMAND...
step() {
    printf '%-48s ' "$1 ..."
    current_log=$2
    "${@:3}" </dev/null >>"$2" 2>&1
    echo ok
}

failed() {
    trap - EXIT
    set +e # nothing may keep it from stopping servers
    echo FAILED
    if [ -s "${current_log:-}" ]; then
        echo "--- the end of $current_log"
        tail -n 30 "$current_log"
        echo "---"
    fi
    stop_servers
    echo "The demo did not start; nothing of it runs. Its logs stay in $log until the next try." >&2
    exit 1
}

build() { make -C "$repo" -j"$jobs" PG_CONFIG="$PG_CONFIG"; }
install_extension() {
    if [ "$(id -u)" = 0 ]; then
        make -C "$repo" PG_CONFIG="$PG_CONFIG" install
    else
        make_private_tree "$dir"
        make -C "$repo" PG_CONFIG="$PG_CONFIG" install DESTDIR="$dir"
    fi
}

start_postgres() {
    as_server env -u LC_ALL LANG=C.UTF-8 "$bin/initdb" -D "$dir/data" -U postgres -A trust -E UTF8
    # Only the socket: its folder is open to its owner alone, so no password is needed.
    as_server tee -a "$dir/data/postgresql.conf" <<END

listen_addresses = ''
unix_socket_directories = '$dir'
shared_preload_libraries = 'snowflake'
snowflake.etcd_endpoints = '$etcd_url'
snowflake.max_clock_error = 0
END
    as_server "$bin/pg_ctl" -D "$dir/data" -l "$log/postgres.log" -w start
    as_server "$bin/createdb" -h "$dir" -U postgres demo
}

sql() { "$bin/psql" -X -q -P pager=off -h "$dir" -U postgres -d demo -v ON_ERROR_STOP=1 "$@"; }

wait_until_ready() {
    local try
    # This etcd is new and never held IDs: said so, nothing needs to be waited for.
    sql -c 'CREATE EXTENSION snowflake; SELECT snowflake_init_region()'
    for try in {1..600}; do
        [ "$(sql -Atc 'SELECT snowflake_ready()')" = f ] || return 0
        sleep 0.1
    done
    echo "no worker number after $((try / 10)) s"
    sql -x -c 'SELECT * FROM pg_stat_snowflake'
    return 1
}

tour() {
    sql -e <<'END'
\echo
\echo 'A table whose primary key is minted by the server itself:'
\echo
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), item text);
INSERT INTO orders (item) VALUES ('tea'), ('coffee'), ('cocoa') RETURNING *;

\echo 'An ID knows when and where it was made:'
\echo
SELECT id, d.* FROM orders, snowflake_decode(id) d;

\echo 'So the primary key also finds rows by time, with its index:'
\echo
INSERT INTO orders (item) SELECT 'water' FROM generate_series(1, 100000);
ANALYZE orders;
SELECT count(*) FROM orders WHERE snowflake_between(id, now() - interval '1 hour', now() + interval '1 hour');
EXPLAIN (COSTS OFF)
SELECT count(*) FROM orders WHERE snowflake_between(id, now(), now() + interval '1 hour');

\echo 'The state of the generator:'
\echo
\x on
SELECT * FROM pg_stat_snowflake;
END
}

start() {
    "$repo/tools/packages.sh" demo
    find_postgres
    if running; then
        echo "The demo is running already."
        how_to_connect
        return
    fi
    if [ -e "$dir" ] && [ ! -e "$dir/snowflake-demo" ]; then
        echo "$dir exists and is not the demo's: remove it, or set SNOWFLAKE_DEMO_DIR." >&2
        exit 1
    fi
    stop_etcd "$dir/etcd"
    rm -rf "$dir"
    mkdir -p "$dir/log" "$dir/etcd"
    touch "$dir/snowflake-demo" # so that no other folder is ever removed
    chmod 700 "$dir"
    if [ "$(id -u)" = 0 ]; then chown -R "$server_user" "$dir"; fi
    as_server touch "$log/postgres.log"

    trap failed EXIT
    trap 'exit 1' INT TERM HUP PIPE
    step 'Building snowflake' "$log/build.log" build
    step "Installing it in Postgres $("$PG_CONFIG" --version | grep -oE '[0-9]+' | head -n 1)" "$log/build.log" install_extension
    step 'Starting etcd' "$log/etcd.log" start_etcd "$dir/etcd" "$log/etcd.log"
    step 'Starting Postgres' "$log/postgres.log" start_postgres
    step 'Claiming a worker number in etcd' "$log/postgres.log" wait_until_ready
    tour
    trap - EXIT

    cat <<END

Both servers go on running.
$(how_to_connect)

The demo sets snowflake.max_clock_error = 0, which does not ask the kernel how good its clock is: most
containers and virtual machines run unsynchronised. Leave that check on where IDs matter.
It also said SELECT snowflake_init_region(), since its etcd is new: else the first server of a region waits
for 40 s, in case its etcd was restored from a backup and has forgotten others.
END
}

stop() {
    if [ ! -e "$dir/snowflake-demo" ]; then
        echo "The demo is not running."
        return
    fi
    find_postgres
    stop_servers
    rm -rf "$dir"
    echo "The demo is stopped and $dir removed."
    [ "$(id -u)" != 0 ] || echo "The extension stays installed: \`make uninstall\` removes it."
}

case ${1:-} in
    start) start ;;
    stop) stop ;;
    status)
        if [ -e "$dir/snowflake-demo" ] && find_postgres && running; then
            echo "The demo is running."
            how_to_connect
        else
            echo "The demo is not running."
            exit 3
        fi
        ;;
    *) echo "usage: $0 start|stop|status" >&2; exit 2 ;;
esac
