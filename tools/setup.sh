#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs the Debian packages that are missing. Usage: tools/setup.sh build|ci
set -eu

packages() {
    echo gcc g++ cmake ninja-build pkg-config libjansson-dev libcmocka-dev python3 binutils libopenmpi-dev openmpi-bin
    echo python3-numpy python3-pytest python3-hypothesis
    if [ "$1" = ci ]; then
        echo clang clang-format libclang-rt-14-dev valgrind abigail-tools git strace libopenblas-dev python3-venv chromium
    fi
}

missing=
for package in $(packages "${1:-build}"); do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
root=
[ "$(id -u)" -eq 0 ] || root=sudo
echo "setup: installing$missing"
$root apt-get update -qq
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive $root apt-get install -y -qq --no-install-recommends $missing >/dev/null
