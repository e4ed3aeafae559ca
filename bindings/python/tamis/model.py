# SPDX-License-Identifier: MIT
"""A model's indexer settings, from the keys of its config.json, and the role of each layer."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Union

from . import _abi
from ._library import check, error_address, lib
from .errors import FileError, FormatError, ModelError

_LAYER_LIMIT = 4096
_INT32_MAX = 2**31 - 1
_CANDIDATE_KEYS = ("candidate_source_layer_id", "candidate_topk_blocks", "candidate_block_size")
_KEYS = (
    "num_hidden_layers",
    "compress_ratios",
    "kv_source_layer_ids",
    "index_source_layer_ids",
    *_CANDIDATE_KEYS,
    "index_n_heads",
    "index_head_dim",
    "index_topk",
)

Config = Union["Model", Mapping[str, Any], str, "os.PathLike[str]"]


class Role(NamedTuple):
    """What a layer does: see ``tamis_layer_role`` in config.h."""

    role: str  #: "none", "full", "source", "consumer" or "reuse"
    ratio: int  #: tokens per position; 0 for "none"
    k_owner: int  #: the layer whose index K it reads; -1: none
    source: int  #: consumer: its candidate source; reuse: whose selection it uses; else -1


class _Reader:
    """Values of a config, each held to its own type and range."""

    def __init__(self, config: Mapping[str, Any], name: str, strict: bool) -> None:
        self.name = name
        self.strict = strict
        nested = config.get("text_config")
        if nested is not None and not isinstance(nested, Mapping):
            self.refuse("text_config", "an object", nested)
        self.values: dict[str, Any] = {}
        for key in _KEYS:
            outside = config.get(key)
            inside = None if nested is None else nested.get(key)
            if inside is not None and outside is not None and inside != outside:
                self.refuse(f"text_config.{key}", f"as outside of it, {_shown(outside)}", inside)
            self.values[key] = outside if inside is None else inside

    def refuse(self, key: str, required: str, found: Any) -> None:
        raise ModelError(f"{self.name}{key}", required, _shown(found))

    def integer(self, key: str, least: int, most: int) -> int:
        value = self.values[key]
        if not self.strict:
            least, most = 0, _INT32_MAX
        if not _is_int(value) or not least <= value <= most:
            self.refuse(key, f"an integer, {least} .. {most}", value)
        return int(value)

    def integers(self, key: str, most: int) -> tuple[int, ...]:
        value = self.values[key]
        if not isinstance(value, (list, tuple)) or len(value) > _LAYER_LIMIT:
            self.refuse(key, f"an array of at most {_LAYER_LIMIT} integers", value)
        for i, entry in enumerate(value):
            if not _is_int(entry) or not 0 <= entry <= most:
                self.refuse(f"{key}[{i}]", f"an integer, 0 .. {most}", entry)
        return tuple(int(entry) for entry in value)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    if value is None:
        return "missing"
    try:
        return json.dumps(value)[:100]
    except (TypeError, ValueError):
        return repr(value)[:100]


def load_json(source: Any, what: str) -> Mapping[str, Any]:
    """The JSON object in a mapping, in text that begins with a brace, or in a file."""
    if isinstance(source, Mapping):
        return source
    text: Any = source
    name = what
    if not (isinstance(source, str) and source.lstrip()[:1] == "{"):
        name = os.fspath(source)
        try:
            text = Path(name).read_text(encoding="utf-8")
        except OSError as why:
            raise FileError(name, "a file that can be read", why.strerror or str(why)) from None
        except UnicodeDecodeError:
            raise FormatError(name, "JSON text in UTF-8", "other bytes") from None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as why:
        raise FormatError(name, "a JSON object", str(why)) from None
    if not isinstance(value, dict):
        raise FormatError(name, "a JSON object", "another JSON value")
    return value


@dataclass(frozen=True)
class Model:
    """Values of a model, named as its config.json names them.

    ``candidate_source_layer_id`` is -1 and the other two candidate values 0 for a one-level model.
    """

    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: int = -1
    candidate_topk_blocks: int = 0
    candidate_block_size: int = 0

    @classmethod
    def from_config(cls, config: Config, *, name: str = "", strict: bool = False) -> Model:
        """A model from a config.json: a dict, JSON text or a path. Unknown keys are ignored, null
        counts as absent, and the keys may lie in ``text_config``.

        With ``strict`` every value has to be one that can run, as in a trace; otherwise only types
        are checked and the indexer's requirements judge the rest. ``name`` precedes keys in errors.
        """
        if isinstance(config, Model):
            return config
        read = _Reader(load_json(config, name or "model"), name, strict)
        ratios = read.integers("compress_ratios", _INT32_MAX)
        if not ratios:
            read.refuse("compress_ratios", "one entry for each layer", [])
        hidden = read.values["num_hidden_layers"]
        if hidden is not None and (not _is_int(hidden) or not 1 <= hidden <= len(ratios)):
            read.refuse(
                "num_hidden_layers", f"1 .. {len(ratios)}, the entries of compress_ratios", hidden
            )
        last = len(ratios) - 1
        owners = read.integers("kv_source_layer_ids", last)
        sources = read.integers("index_source_layer_ids", last)
        together = strict and any(read.values[key] is not None for key in _CANDIDATE_KEYS)
        candidate = {}
        for key, least, most in zip(_CANDIDATE_KEYS, (0, 1, 8), (last, 4096, 16)):
            if together or read.values[key] is not None:
                candidate[key] = read.integer(key, least, most)
        return cls(
            ratios,
            owners,
            sources,
            read.integer("index_n_heads", 4, 64),
            read.integer("index_head_dim", 64, 128),
            read.integer("index_topk", 1, 4096),
            **candidate,
        )

    @property
    def two_level(self) -> bool:
        """Whether the model has a candidate source."""
        return self.candidate_source_layer_id >= 0

    def to_config(self) -> dict[str, Any]:
        """The keys of a config.json."""
        out: dict[str, Any] = {
            "compress_ratios": list(self.compress_ratios),
            "kv_source_layer_ids": list(self.kv_source_layer_ids),
            "index_source_layer_ids": list(self.index_source_layer_ids),
            "index_n_heads": self.index_n_heads,
            "index_head_dim": self.index_head_dim,
            "index_topk": self.index_topk,
        }
        if self.two_level:
            for key in _CANDIDATE_KEYS:
                out[key] = getattr(self, key)
        return out

    def struct(self) -> tuple[_abi.ModelStruct, Any]:
        """The C struct, and what has to live as long as it does."""
        arrays = [
            (ctypes.c_int32 * max(len(values), 1))(*values)
            for values in (
                self.compress_ratios,
                self.kv_source_layer_ids,
                self.index_source_layer_ids,
            )
        ]
        s = _abi.ModelStruct()
        s.struct_size = ctypes.sizeof(s)
        s.num_layers = len(self.compress_ratios)
        s.compress_ratios = ctypes.addressof(arrays[0])
        s.kv_source_layer_ids = ctypes.addressof(arrays[1])
        s.index_source_layer_ids = ctypes.addressof(arrays[2])
        s.num_kv_sources = len(self.kv_source_layer_ids)
        s.num_index_sources = len(self.index_source_layer_ids)
        for key in (*_CANDIDATE_KEYS, "index_n_heads", "index_head_dim", "index_topk"):
            setattr(s, key, getattr(self, key))
        return s, arrays

    def roles(self) -> list[Role]:
        """The role of every layer. Raises ModelError naming the key and the layer."""
        struct, keep = self.struct()
        out = (_abi.LayerRoleStruct * len(self.compress_ratios))()
        check(
            lib.tamis_model_roles(ctypes.addressof(struct), ctypes.addressof(out), error_address())
        )
        del keep
        return [role_of(entry) for entry in out]


def role_of(entry: _abi.LayerRoleStruct) -> Role:
    """A Role of the C struct."""
    return Role(_abi.ROLES[entry.role], entry.ratio, entry.k_owner, entry.source)


def visible(token: int, ratio: int) -> int:
    """Positions that the token at this 0-based position sees: (token + 1) // ratio."""
    return int(lib.tamis_visible(token, ratio))


def named(entry: bytes | None) -> str:
    return (entry or b"").decode()
