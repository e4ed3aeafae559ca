# SPDX-License-Identifier: MIT
"""``python -m tamis.report TRACE [RESULT] -o report.html``."""

import sys

from . import main

sys.exit(main())
