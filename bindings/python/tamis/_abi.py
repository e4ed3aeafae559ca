# SPDX-License-Identifier: MIT
"""Mirrors of the structs and calls in include/tamis, as ctypes sees them.

Fields are written as annotations whose names are the C types, and ``mirror`` makes ``_fields_`` of
them: one statement serves ctypes and the type checker. tests/test_abi.py holds every offset, size
and prototype here to a program compiled from the headers.
"""

from __future__ import annotations

import ctypes
from typing import Any, TypeVar

i32 = int
u32 = int
i64 = int
u64 = int
f32 = float
ptr = int | None
text = bytes | None
chars32 = bytes
chars60 = bytes
chars64 = bytes
chars96 = bytes
chars128 = bytes
ptr_pair = Any
i64_pair = Any

_C_TYPES: dict[str, Any] = {
    "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32,
    "i64": ctypes.c_int64,
    "u64": ctypes.c_uint64,
    "ptr": ctypes.c_void_p,
    "text": ctypes.c_char_p,
    "chars32": ctypes.c_char * 32,
    "chars60": ctypes.c_char * 60,
    "chars64": ctypes.c_char * 64,
    "chars96": ctypes.c_char * 96,
    "chars128": ctypes.c_char * 128,
    "ptr_pair": ctypes.c_void_p * 2,
    "i64_pair": ctypes.c_int64 * 2,
}

#: name in C -> mirror
STRUCTS: dict[str, type[ctypes.Structure]] = {}

_S = TypeVar("_S", bound=type[ctypes.Structure])


def mirror(c_name: str) -> Any:
    """Gives a class the fields that its annotations name and lists it in STRUCTS."""

    def decorate(cls: _S) -> _S:
        fields: list[tuple[str, Any]] = []
        for name, kind in cls.__dict__["__annotations__"].items():
            fields.append((name, _C_TYPES[kind]))
        cls._fields_ = fields
        _C_TYPES[cls.__name__] = cls
        STRUCTS[c_name] = cls
        return cls

    return decorate


# ---- status.h ---------------------------------------------------------------------------------


@mirror("tamis_error")
class ErrorStruct(ctypes.Structure):
    status: i32
    argument: chars60
    required: chars128
    found: chars128


# ---- types.h ----------------------------------------------------------------------------------

F32, BF16 = 1, 2
K_MXFP4_PAGE, K_MXFP4_SPLIT, K_MXFP4_ROW = 1, 2, 3
NUMERICS = {"exact": 1, "bf16": 2, "dg_bf16": 3, "ref_bf16": 4}


@mirror("tamis_k_cache")
class KCacheStruct(ctypes.Structure):
    layout: i32
    head_dim: i32
    page_size: i32
    reserved: i32
    size: i64
    stride: i64
    scales_stride: i64
    codes: ptr
    scales: ptr


@mirror("tamis_rows")
class RowsStruct(ctypes.Structure):
    count: i64
    ks: ptr
    ke: ptr
    request: ptr
    page_table: ptr
    page_table_stride: i64
    page_table_width: i64
    requests: i64


@mirror("tamis_query")
class QueryStruct(ctypes.Structure):
    heads: i32
    head_dim: i32
    weights_type: i32
    reserved: i32
    codes: ptr
    scales: ptr
    weights: ptr
    codes_row_stride: i64
    codes_head_stride: i64
    scales_row_stride: i64
    scales_head_stride: i64
    weights_row_stride: i64


@mirror("tamis_selection")
class SelectionStruct(ctypes.Structure):
    topk: i32
    reserved: i32
    positions: ptr
    positions_stride: i64
    slots: ptr
    slots_stride: i64
    scores: ptr
    scores_stride: i64
    counts: ptr


# ---- config.h ---------------------------------------------------------------------------------

ROLES = ("none", "full", "source", "consumer", "reuse")


@mirror("tamis_model")
class ModelStruct(ctypes.Structure):
    struct_size: u32
    num_layers: i32
    compress_ratios: ptr
    kv_source_layer_ids: ptr
    index_source_layer_ids: ptr
    num_kv_sources: i32
    num_index_sources: i32
    candidate_source_layer_id: i32
    candidate_topk_blocks: i32
    candidate_block_size: i32
    index_n_heads: i32
    index_head_dim: i32
    index_topk: i32


@mirror("tamis_layer_role")
class LayerRoleStruct(ctypes.Structure):
    role: i32
    ratio: i32
    k_owner: i32
    source: i32


# ---- stages.h ---------------------------------------------------------------------------------


@mirror("tamis_rope")
class RopeStruct(ctypes.Structure):
    table: ptr
    type: i32
    reserved: i32
    positions: i64
    row_stride: i64


@mirror("tamis_q_prepare_args")
class QPrepareArgs(ctypes.Structure):
    struct_size: u32
    heads: i32
    head_dim: i32
    weights_in_type: i32
    weights_out_type: i32
    reserved: i32
    tokens: i64
    q: ptr
    q_token_stride: i64
    q_head_stride: i64
    positions: ptr
    rope: RopeStruct
    weights_in: ptr
    weights_in_stride: i64
    codes: ptr
    scales: ptr
    weights_out: ptr
    codes_row_stride: i64
    codes_head_stride: i64
    scales_row_stride: i64
    scales_head_stride: i64
    weights_out_stride: i64


@mirror("tamis_k_insert_args")
class KInsertArgs(ctypes.Structure):
    struct_size: u32
    ratio: i32
    norm_weight_type: i32
    reserved: i32
    tokens: i64
    x: ptr
    x_stride: i64
    positions: ptr
    slots: ptr
    norm_weight: ptr
    eps: ptr
    rope: RopeStruct
    k: KCacheStruct


@mirror("tamis_k_gather_args")
class KGatherArgs(ctypes.Structure):
    struct_size: u32
    reserved: i32
    k: KCacheStruct
    rows: RowsStruct
    start: ptr
    size: i64
    codes: ptr
    scales: ptr
    codes_stride: i64
    scales_stride: i64


@mirror("tamis_mqa_logits_args")
class MqaLogitsArgs(ctypes.Structure):
    struct_size: u32
    numerics: i32
    k: KCacheStruct
    rows: RowsStruct
    query: QueryStruct
    logits_type: i32
    block_size: i32
    columns: i64
    logits: ptr
    logits_stride: i64
    block_max: ptr
    block_max_stride: i64


@mirror("tamis_block_max_args")
class BlockMaxArgs(ctypes.Structure):
    struct_size: u32
    block_size: i32
    logits_type: i32
    reserved: i32
    rows: RowsStruct
    logits: ptr
    logits_stride: i64
    block_max: ptr
    block_max_stride: i64


@mirror("tamis_publish_args")
class PublishArgs(ctypes.Structure):
    struct_size: u32
    block_size: i32
    topk_blocks: i32
    reserved: i32
    rows: RowsStruct
    block_max: ptr
    block_max_stride: i64
    blocks: ptr
    blocks_stride: i64
    counts: ptr


EXPAND_KEEP_DUPLICATES, EXPAND_FIXED_WIDTH = 1, 2


@mirror("tamis_expand_args")
class ExpandArgs(ctypes.Structure):
    struct_size: u32
    candidate_size: i32
    block_size: i32
    flags: i32
    rows: RowsStruct
    width: i64
    candidates: ptr
    candidates_stride: i64
    blocks: ptr
    blocks_stride: i64
    counts: ptr
    columns: ptr


@mirror("tamis_sparse_mqa_logits_args")
class SparseMqaLogitsArgs(ctypes.Structure):
    struct_size: u32
    numerics: i32
    k: KCacheStruct
    rows: RowsStruct
    query: QueryStruct
    block_size: i32
    logits_type: i32
    width: i64
    blocks: ptr
    blocks_stride: i64
    counts: ptr
    logits: ptr
    logits_stride: i64
    physical: ptr
    physical_stride: i64


@mirror("tamis_topk_args")
class TopkArgs(ctypes.Structure):
    struct_size: u32
    logits_type: i32
    block_size: i32
    reserved: i32
    rows: RowsStruct
    logits: ptr
    logits_stride: i64
    width: i64
    columns: ptr
    blocks: ptr
    blocks_stride: i64
    page_size: i32
    reserved2: i32
    selection: SelectionStruct


@mirror("tamis_consume_args")
class ConsumeArgs(ctypes.Structure):
    struct_size: u32
    numerics: i32
    k: KCacheStruct
    rows: RowsStruct
    query: QueryStruct
    block_size: i32
    reserved: i32
    width: i64
    blocks: ptr
    blocks_stride: i64
    counts: ptr
    selection: SelectionStruct
    workspace: ptr
    workspace_bytes: i64
    physical: ptr
    physical_stride: i64


@mirror("tamis_source_args")
class SourceArgs(ctypes.Structure):
    struct_size: u32
    numerics: i32
    k: KCacheStruct
    rows: RowsStruct
    query: QueryStruct
    block_size: i32
    topk_blocks: i32
    blocks: ptr
    blocks_stride: i64
    counts: ptr
    selection: SelectionStruct
    workspace: ptr
    workspace_bytes: i64


@mirror("tamis_dense_args")
class DenseArgs(ctypes.Structure):
    struct_size: u32
    numerics: i32
    k: KCacheStruct
    rows: RowsStruct
    query: QueryStruct
    block_size: i32
    reserved: i32
    width: i64
    blocks: ptr
    blocks_stride: i64
    counts: ptr
    selection: SelectionStruct
    workspace: ptr
    workspace_bytes: i64


# ---- cuda.h -----------------------------------------------------------------------------------


@mirror("tamis_cuda_device")
class CudaDeviceStruct(ctypes.Structure):
    name: chars96
    major: i32
    minor: i32
    multiprocessors: i32
    supported: i32
    memory_bytes: i64


# ---- plan.h, indexer.h ------------------------------------------------------------------------


@mirror("tamis_plan_limits")
class PlanLimitsStruct(ctypes.Structure):
    struct_size: u32
    max_requests: i32
    max_batched_tokens: i32
    draft_tokens: i32
    largest_graph: i32
    threads: i32
    max_context: i64


@mirror("tamis_batch")
class BatchStruct(ctypes.Structure):
    struct_size: u32
    requests: i32
    tokens: i64
    padded_rows: i64
    context: ptr
    query_start: ptr
    k_start: ptr_pair
    page_table: ptr_pair
    page_table_stride: i64_pair
    page_table_width: i64_pair


@mirror("tamis_step_counts")
class StepCountsStruct(ctypes.Structure):
    serial: u64
    rows: i64
    decode_rows: i64
    prefill_rows: i64
    requests: i64
    max_visible: i64_pair


@mirror("tamis_step")
class StepStruct(ctypes.Structure):
    struct_size: u32
    nonce: i32
    serial: u64
    plan: ptr
    counts: ptr
    token: ptr
    request: ptr
    ks: ptr_pair
    ke: ptr_pair
    page_table: ptr_pair
    page_table_stride: i64_pair
    page_table_width: i64_pair


SPARSE = {False: 0, True: 1, "auto": 2}


@mirror("tamis_settings")
class SettingsStruct(ctypes.Structure):
    struct_size: u32
    indexer_sparse_logits: i32
    prefill_budget_mb: i32
    reserved: i32
    indexer_kv_dtype: text
    topk_backend: text
    numerics: text


@mirror("tamis_indexer_options")
class IndexerOptionsStruct(ctypes.Structure):
    struct_size: u32
    k_layout: i32
    model: ptr
    settings: ptr
    tier: text
    page_size: i32
    page_align: i32
    page_stride: i64
    context_parallel: i32
    decode_parallel: i32
    limits: ptr
    workspace_limit: i64


@mirror("tamis_requirement")
class RequirementStruct(ctypes.Structure):
    id: chars32
    setting: chars64
    required: chars128
    found: chars96
    way_out: chars128


@mirror("tamis_layer_args")
class LayerArgs(ctypes.Structure):
    struct_size: u32
    layer: i32
    k: KCacheStruct
    query: QueryStruct
    selection: SelectionStruct
    blocks: ptr
    blocks_stride: i64


@mirror("tamis_plan_counters")
class PlanCountersStruct(ctypes.Structure):
    struct_size: u32
    reserved: i32
    steps: u64
    expanded: u64
    consumed: u64
    sparse_rows: u64
    dense_rows: u64


# ---- kv.h -------------------------------------------------------------------------------------


@mirror("tamis_kv_spec")
class KvSpecStruct(ctypes.Structure):
    struct_size: u32
    group: i32
    states: i64
    row_bytes: i64
    page_alignment: i64
    block_stride_alignment: i64


@mirror("tamis_kv_layout")
class KvLayoutStruct(ctypes.Structure):
    struct_size: u32
    groups: i32
    bytes_unaligned: i64
    alignment: i64
    bytes_per_block: i64
    overhead_ppm: i64


# ---- calls ------------------------------------------------------------------------------------

STAGES = [
    "q_prepare",
    "k_insert",
    "k_gather",
    "mqa_logits",
    "block_max",
    "publish",
    "expand",
    "sparse_mqa_logits",
    "topk",
    "consume",
    "source",
    "dense",
]

_I32, _I64, _U32 = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint32
_P, _S_ = ctypes.c_void_p, ctypes.c_char_p
_SLICE = [_P, _P, _I32, _I32, _P]
_RUN = [_P, _P, _P, _I32, _I32, _P]

#: name -> (result, arguments). Structs are passed by address.
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "tamis_version": (_S_, []),
    "tamis_abi_version": (_I32, []),
    "tamis_status_text": (_S_, [_I32]),
    "tamis_error_text": (_I32, [_P, _P, _I64]),
    "tamis_model_roles": (_I32, [_P, _P, _P]),
    "tamis_role_name": (_S_, [_I32]),
    "tamis_visible": (_I64, [_I64, _I32]),
    "tamis_k_row_bytes": (_I64, [_I32]),
    "tamis_k_page_stride": (_I64, [_I32, _I32, _I64]),
    "tamis_k_cache_check": (_I32, [_P, _P]),
    "tamis_kv_spec_default": (None, [_P]),
    "tamis_kv_index_spec": (_I32, [_I64, _I32, _I64, _I32, _P, _P]),
    "tamis_kv_merge": (_I32, [_P, _P, _P, _P]),
    "tamis_kv_layout_default": (None, [_P]),
    "tamis_kv_lay_out": (_I32, [_P, _I32, _P, _P, _P]),
    "tamis_kv_blocks": (_I64, [_P, _I64]),
    "tamis_kv_states_without_overhead": (_I64, [_I64, _I64, _I64]),
    "tamis_backend_create": (_I32, [_S_, _P, _P]),
    "tamis_backend_destroy": (None, [_P]),
    "tamis_backend_tier": (_S_, [_P]),
    "tamis_tier_name": (_S_, [_I32, _P]),
    "tamis_consume_workspace": (_I64, [_P, _I32]),
    "tamis_source_workspace": (_I64, [_P, _I32]),
    "tamis_dense_workspace": (_I64, [_P, _I32]),
    "tamis_consume_split_workspace": (_I64, [_P, _I32]),
    "tamis_consume_score": (_I32, _SLICE),
    "tamis_consume_merge": (_I32, _SLICE),
    "tamis_source_split_workspace": (_I64, [_P, _I32]),
    "tamis_source_score": (_I32, _SLICE),
    "tamis_source_merge": (_I32, _SLICE),
    "tamis_plan_limits_default": (None, [_P]),
    "tamis_plan_max_rows": (_I64, [_P]),
    "tamis_plan_bytes": (_I64, [_P, _P, _P]),
    "tamis_plan_init": (_I32, [_P, _P, _P, _I64, _P, _P]),
    "tamis_batch_default": (None, [_P]),
    "tamis_step_make": (_I32, [_P, _P, _P, _P]),
    "tamis_step_is_short": (_I32, [_P, _I32, _I32]),
    "tamis_chunk_rows_dense": (_I64, [_I64, _I64]),
    "tamis_chunk_rows_sparse": (_I64, [_I64, _I64, _I64]),
    "tamis_settings_default": (None, [_P]),
    "tamis_indexer_options_default": (None, [_P]),
    "tamis_indexer_supported": (_I32, [_P, _P, _I32]),
    "tamis_requirement_text": (_I32, [_P, _P, _I64]),
    "tamis_requirement_count": (_I32, []),
    "tamis_requirement_id": (_S_, [_I32]),
    "tamis_indexer_create": (_I32, [_P, _P, _P]),
    "tamis_indexer_destroy": (None, [_P]),
    "tamis_indexer_role": (_P, [_P, _I32]),
    "tamis_indexer_tier": (_S_, [_P]),
    "tamis_layer_args_default": (None, [_P]),
    "tamis_source_run": (_I32, _RUN),
    "tamis_consumer_run": (_I32, _RUN),
    "tamis_layer_score": (_I32, _RUN),
    "tamis_layer_merge": (_I32, _RUN),
    "tamis_plan_count": (None, [_P, _P]),
    "tamis_cuda_create": (_I32, [_P, _P]),
    "tamis_cuda_create_on": (_I32, [_I32, _P, _P]),
    "tamis_cuda_destroy": (None, [_P]),
    "tamis_cuda_result": (_I32, [_P]),
    "tamis_cuda_result_text": (_S_, [_P, _I32]),
    "tamis_cuda_built": (_I32, []),
    "tamis_cuda_driver_version": (_I32, []),
    "tamis_cuda_devices": (_I32, [_P, _I32]),
    "tamis_cuda_consume_workspace": (_I64, [_P, _P]),
    "tamis_cuda_source_workspace": (_I64, [_P, _P]),
    "tamis_cuda_dense_workspace": (_I64, [_P, _P]),
    "tamis_cuda_plan_bytes": (_I64, [_P, _P, _P]),
    "tamis_cuda_plan_create": (_I32, [_P, _P, _P, _P, _I64, _P, _P, _P]),
    "tamis_cuda_plan_destroy": (None, [_P]),
    "tamis_cuda_step_make": (_I32, [_P, _P, _P, _P, _P]),
    "tamis_cuda_source_run": (_I32, [_P, _P, _P, _P, _P]),
    "tamis_cuda_consumer_run": (_I32, [_P, _P, _P, _P, _P]),
    "tamis_cuda_plan_status": (_U32, [_P]),
    "tamis_cuda_plan_clear": (None, [_P]),
}
for _name in STAGES:
    FUNCTIONS[f"tamis_{_name}_args_default"] = (None, [_P])
    FUNCTIONS[f"tamis_{_name}"] = (_I32, _SLICE)
    FUNCTIONS[f"tamis_cuda_{_name}"] = (_I32, [_P, _P, _P, _P])

#: Calls that Python has no use for: its threads are its own, and device memory is torch's.
UNUSED = (
    "tamis_pool_create",
    "tamis_pool_destroy",
    "tamis_pool_threads",
    "tamis_pool_run",
    "tamis_cuda_alloc",
    "tamis_cuda_free",
    "tamis_cuda_copy_in",
    "tamis_cuda_copy_out",
    "tamis_cuda_stream_create",
    "tamis_cuda_stream_destroy",
    "tamis_cuda_stream_sync",
    "tamis_cuda_event_create",
    "tamis_cuda_event_destroy",
    "tamis_cuda_event_record",
    "tamis_cuda_event_elapsed",
)


def bind(library: ctypes.CDLL) -> None:
    """Gives every call of the library its prototype."""
    for name, (result, arguments) in FUNCTIONS.items():
        call = getattr(library, name)
        call.restype = result
        call.argtypes = arguments
