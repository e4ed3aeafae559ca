#!/bin/sh
# SPDX-License-Identifier: MIT
# Fetches what a build needs on a GPU machine without a network: Debian packages, into .carry/, which
# git ignores. tools/gpu-test.sh unpacks them there when the machine lacks them.
set -eu
cd "$(dirname "$0")/.."
mkdir -p .carry
cd .carry
apt-get download -qq libjansson4 libjansson-dev libcmocka0 libcmocka-dev pkgconf pkgconf-bin libpkgconf3
du -ch ./*.deb
