# SPDX-License-Identifier: MIT
"""run.py FILE: runs a file of tests, names every skipped one, and exits with 77 when all were."""

import sys

import pytest


class Count:
    """Counts what ran and keeps the reasons of what did not."""

    def __init__(self):
        self.ran = 0
        self.reasons = []

    def pytest_runtest_logreport(self, report):
        if report.skipped:
            self.reasons.append(report.longrepr[2])
        elif report.when == "call":
            self.ran += 1

    def pytest_collectreport(self, report):
        if report.skipped:
            self.reasons.append(report.longrepr[2])


def main():
    count = Count()
    options = ["-q", "-rs", "-p", "no:cacheprovider"]
    code = pytest.main([*options, *sys.argv[1:]], plugins=[count])
    if count.reasons and not count.ran and code in (0, 5):
        reason = count.reasons[0].removeprefix("Skipped: ").removeprefix("SKIPPED: ")
        print(f"SKIPPED: {reason}")
        return 77
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
