#!/bin/bash
# packages.sh demo|check|sim|model|drill: installs the Debian packages that are missing for it, and says
# which.
# With all of them there it says nothing and asks no network.
set -euo pipefail

case ${1:-} in
    demo | check | sim | model | drill) what=$1 ;;
    *) echo "usage: $0 demo|check|sim|model|drill" >&2; exit 2 ;;
esac

# The newest Postgres that is installed, or else the one of Debian 12.
major=$(find /usr/lib/postgresql -path '*/bin/postgres' 2>/dev/null | cut -d/ -f5 | sort -n | tail -n 1) || true
major=${major:-15}

# libc6-dev is only recommended by g++'s chain of packages, and --no-install-recommends is used below.
packages=(g++ libc6-dev make)
case $what in
    demo | check | drill)
        packages+=(libcurl4-openssl-dev libssl-dev nlohmann-json3-dev etcd-server etcd-client)
        # Somebody who names a pg_config brings a Postgres of their own.
        if [ -z "${PG_CONFIG:-}" ]; then
            packages+=("postgresql-$major" "postgresql-server-dev-$major")
        fi
        ;;
esac
case $what in
    check) packages+=(libgtest-dev perl libipc-run-perl openssl util-linux procps binutils) ;;
    drill) packages+=(libpq-dev perl libipc-run-perl util-linux procps) ;;
    sim) packages+=(perl) ;;
    model) packages+=(gcc spin) ;;
esac

missing=()
for package in "${packages[@]}"; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || true
    [ "$state" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

install=(apt-get -o DPkg::Lock::Timeout=600 -y -q --no-install-recommends install "${missing[@]}")
if [ "$(id -u)" != 0 ]; then
    printf 'These Debian packages are missing: %s\nAs root, run:\n\n    apt-get update && apt-get install --no-install-recommends %s\n\n' \
        "${missing[*]}" "${missing[*]}" >&2
    exit 1
fi

echo "Installing Debian packages: ${missing[*]}"
log=$(mktemp)
policy=/usr/sbin/policy-rc.d
dropin=/etc/postgresql-common/createcluster.d/snowflake-packages.conf
made_policy=
cleanup() {
    rm -f "$log" "$dropin"
    [ -z "$made_policy" ] || rm -f "$policy"
}
trap cleanup EXIT

# The packages of etcd and Postgres start services and a cluster of their own. Nobody asked for
# those, so both are held back while they are installed, by the means that Debian has for it.
if [ ! -e "$policy" ]; then
    made_policy=yes
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
mkdir -p "${dropin%/*}"
echo 'create_main_cluster = false' >"$dropin"

export DEBIAN_FRONTEND=noninteractive
if ! { apt-get -o DPkg::Lock::Timeout=600 -q update && "${install[@]}"; } </dev/null >"$log" 2>&1; then
    tail -n 25 "$log" >&2
    echo "Could not install: ${missing[*]}" >&2
    exit 1
fi

# Held back now, it would still start at the next boot.
if [[ " ${missing[*]} " == *" etcd-server "* ]]; then
    deb-systemd-helper disable etcd.service >/dev/null 2>&1 || true
fi
