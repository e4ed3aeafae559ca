# SPDX-License-Identifier: MIT
"""What an indexer is made of, and the requirements that it has to meet."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, NamedTuple

from . import _abi
from ._library import lib
from .arrays import integer
from .errors import ArgumentError, FormatError
from .model import Config, Model, load_json
from .views import LAYOUTS

Settings = Mapping[str, Any] | str | None

_SETTINGS: dict[str, tuple[type, ...]] = {
    "indexer_kv_dtype": (str,),
    "topk_backend": (str,),
    "numerics": (str,),
    "indexer_sparse_logits": (bool, str),
    "prefill_budget_mb": (int,),
}


class Requirement(NamedTuple):
    """A requirement that is not met, and what would meet it."""

    id: str
    setting: str
    required: str
    found: str
    way_out: str

    def __str__(self) -> str:
        return (
            f"{self.id} {self.setting}: required {self.required}, found {self.found}; "
            f"{self.way_out}"
        )


def read_settings(given: Settings) -> dict[str, Any]:
    """The attention config's keys, each of its type; unknown keys are errors."""
    if given is None:
        return {}
    out = dict(load_json(given, "attention config"))
    for key, value in out.items():
        kinds = _SETTINGS.get(key)
        if kinds is None:
            raise FormatError(str(key), " or ".join(_SETTINGS), "an unknown key")
        good = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
        if key == "indexer_sparse_logits" and isinstance(value, str):
            good = value == "auto"
        if key == "prefill_budget_mb" and good:
            good = -(2**31) <= value < 2**31
        if not good:
            wanted = {
                "indexer_sparse_logits": 'True, False or "auto"',
                "prefill_budget_mb": "an integer of 32 bits",
            }.get(key, "a string")
            raise FormatError(key, wanted, repr(value)[:60])
    return out


class Options:
    """The C options, and all that they point to."""

    def __init__(
        self,
        model: Config,
        settings: Settings,
        layout: str,
        page_size: int,
        page_align: int,
        page_stride: int,
        tier: str,
        context_parallel: int,
        decode_parallel: int,
        limits: Mapping[str, int] | None,
        workspace_limit: int,
    ) -> None:
        if layout not in LAYOUTS:
            raise ArgumentError("layout", " or ".join(LAYOUTS), repr(layout))
        self.model = Model.from_config(model)
        self.settings = read_settings(settings)
        self._model, self._arrays = self.model.struct()
        self._settings = _abi.SettingsStruct()
        lib.tamis_settings_default(ctypes.addressof(self._settings))
        for key, value in self.settings.items():
            if key == "indexer_sparse_logits":
                value = _abi.SPARSE[value]
            setattr(self._settings, key, value.encode() if isinstance(value, str) else value)
        o = self.struct = _abi.IndexerOptionsStruct()
        lib.tamis_indexer_options_default(ctypes.addressof(o))
        o.k_layout = LAYOUTS[layout]
        o.model = ctypes.addressof(self._model)
        o.settings = ctypes.addressof(self._settings)
        o.tier = tier.encode()
        _set(o, "page_size", page_size if layout == "mxfp4_page" else 0)
        _set(o, "page_align", page_align)
        _set(o, "page_stride", page_stride)
        _set(o, "context_parallel", context_parallel)
        _set(o, "decode_parallel", decode_parallel)
        _set(o, "workspace_limit", workspace_limit)
        if limits is not None:
            self._limits = limits_struct(limits)
            o.limits = ctypes.addressof(self._limits)

    def failures(self) -> list[Requirement]:
        address = ctypes.addressof(self.struct)
        count = lib.tamis_indexer_supported(address, None, 0)
        entries = (_abi.RequirementStruct * max(count, 1))()
        lib.tamis_indexer_supported(address, ctypes.addressof(entries), count)
        return [
            Requirement(*(getattr(entries[i], name).decode() for name in Requirement._fields))
            for i in range(count)
        ]


def limits_struct(limits: Mapping[str, int]) -> _abi.PlanLimitsStruct:
    """The C limits of ``max_requests``, ``max_batched_tokens``, ``max_context`` and so on."""
    s = _abi.PlanLimitsStruct()
    lib.tamis_plan_limits_default(ctypes.addressof(s))
    names = [entry[0] for entry in s._fields_[1:]]
    for name, value in limits.items():
        if name not in names:
            raise ArgumentError(f"limits.{name}", " or ".join(names), "an unknown name")
        _set(s, name, value, "limits.")
    return s


def _set(struct: ctypes.Structure, name: str, value: Any, prefix: str = "") -> None:
    """Sets a field that holds an integer; ctypes would cut what is too long for it."""
    bits = 8 * getattr(type(struct), name).size
    setattr(struct, name, integer(prefix + name, value, bits))
