#!/bin/sh
# SPDX-License-Identifier: MIT
# Fetches what a build and its tests need on a GPU machine without a network: Debian packages and pytest,
# into .carry/, which git ignores. tools/gpu-test.sh unpacks them there when the machine lacks them.
set -eu
cd "$(dirname "$0")/.."
mkdir -p .carry
cd .carry
apt-get download -qq libjansson4 libjansson-dev libcmocka0 libcmocka-dev pkgconf pkgconf-bin libpkgconf3
pip --disable-pip-version-check download -q --only-binary=:all: -d wheels pytest
du -ch ./*.deb wheels/*
