# SPDX-License-Identifier: MIT
"""What the parts of the page share: they are made from the measured dictionary alone.

So every number that a reader sees is also in the page's JSON, and the tests hold that one to numpy.
"""

from __future__ import annotations

from typing import Any

Data = dict[str, Any]


def present(data: Data) -> list[Data]:
    return [layer for layer in data["layers"] if layer["present"]]


def consumers(data: Data) -> list[Data]:
    return [layer for layer in present(data) if layer["role"] == "consumer"]


def name_of(layer: Data) -> str:
    return f"Layer {layer['layer']}"
