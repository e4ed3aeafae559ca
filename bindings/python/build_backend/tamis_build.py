# SPDX-License-Identifier: MIT
"""scikit-build-core, and then the platform tag that the wheel's binaries really ask for.

A wheel says manylinux_2_X when its programs and libraries need nothing newer than glibc 2.X. That X
is read from what was linked, so that a wheel built on a new system does not claim an old one.
"""

import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

from scikit_build_core.build import (
    build_wheel as _build_wheel,
)
from scikit_build_core.build import (
    get_requires_for_build_wheel as _requires,
)
from scikit_build_core.build import (
    prepare_metadata_for_build_wheel,
)

__all__ = ["build_wheel", "get_requires_for_build_wheel", "prepare_metadata_for_build_wheel"]

# Names of symbol versions, as they stand in a binary's string table.
_GLIBC = re.compile(rb"GLIBC_2\.(\d+)(?:\.\d+)?\0")


def get_requires_for_build_wheel(config_settings=None):
    return [*_requires(config_settings), "wheel"]


def newest_glibc(wheel):
    """X of the newest GLIBC_2.X that a binary of the wheel names."""
    found = [5]  # manylinux_2_5 is the oldest there is
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            data = archive.read(name)
            if data[:4] == b"\x7fELF":
                found += [int(x) for x in _GLIBC.findall(data)]
    return max(found)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = _build_wheel(wheel_directory, config_settings, metadata_directory)
    if not sys.platform.startswith("linux"):
        return name
    path = Path(wheel_directory, name)
    machine = sysconfig.get_platform().split("-", 1)[1].replace("-", "_")
    tag = f"manylinux_2_{newest_glibc(path)}_{machine}"
    done = subprocess.run(
        [sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, str(path)],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip().splitlines()[-1]
