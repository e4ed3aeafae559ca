// SPDX-License-Identifier: MIT
/* source_call.cuh: a source's call on the device for bench programs: K, queries, rows. */
#ifndef TAMIS_BENCH_GPU_SOURCE_CALL_CUH
#define TAMIS_BENCH_GPU_SOURCE_CALL_CUH

#include <tamis/tamis.h>

#include "format/mxfp4.h"
#include "measure.cuh"

namespace {

struct Shape {
    int rows, page;
    int64_t positions; /* of every request, at most */
    int requests;      /* 0: runs of random length */
    int ends;          /* 0: any, 1: ascending by one, 2: all equal */
    int starts;        /* ks: 0 NULL, 1 one a request, 2 any */
    int scales;        /* 0 as trained, 1 any byte, 2 a few wide or NaN */
    int weights;       /* 0 plain, 1 hostile */
    int zeros;         /* all codes 0 */
    int logits;        /* 0: none, else TAMIS_F32, TAMIS_BF16 */
    int block, fill, round, w16;
};

struct Call {
    tamis_mqa_logits_args a;
    std::vector<void *> owned;
    template <class T> T *on_device(const std::vector<T> &host) {
        T *p = (T *)reserve(host.size() * sizeof(T));
        CHECK(cudaMemcpy(p, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
        return p;
    }
    void *reserve(size_t bytes) {
        void *p = nullptr;
        CHECK(cudaMalloc(&p, std::max<size_t>(16, bytes)));
        owned.push_back(p);
        return p;
    }
    ~Call() {
        for (void *p : owned) {
            cudaFree(p);
        }
    }
};

__device__ uint32_t mixed(uint64_t x) {
    x = (x ^ x >> 31) * 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 29) * 0xBF58476D1CE4E5B9ull;
    return (uint32_t)(x >> 32);
}

/* Four scale bytes with a span as trained tensors have them: 0, 1, 2, 3 with these chances. */
__device__ uint32_t trained_scales(uint64_t seed) {
    uint32_t u = mixed(seed) % 1000, span = u < 63 ? 0 : u < 621 ? 1 : u < 994 ? 2 : 3;
    uint32_t bits = mixed(seed + 1), top = 118 + bits % 6, word = 0;
    for (int g = 0; g < 4; g++) {
        uint32_t down = span ? (bits >> (8 + 2 * g)) % (span + 1) : 0;
        word |= (top - down) << (8 * g);
    }
    return (word & ~(255u << (8 * (bits >> 30)))) | top << (8 * (bits >> 30));
}

__global__ void make_bytes(uint32_t *to, int64_t words, uint64_t seed) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < words;
         i += (int64_t)gridDim.x * blockDim.x) {
        to[i] = mixed((uint64_t)i * 2 + seed * 0x100000001ull);
    }
}

/* Groups of four bytes: kind as Shape.scales. */
__global__ void make_scales(uint8_t *to, int64_t count, int64_t each, int64_t stride, int kind,
                            uint64_t seed) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint64_t own = (seed << 40) + (uint64_t)i * 4;
        uint32_t word = kind == 1 ? mixed(own) : trained_scales(own);
        uint32_t bits = mixed(own + 2);
        if (kind == 2 && bits % 64 == 0) {
            uint32_t at = bits >> 8 & 24, odd = bits >> 20 & 3 ? 105 + (bits >> 24) % 20 : 255;
            word = (word & ~(255u << at)) | odd << at;
        }
        *(uint32_t *)(to + i / each * stride + i % each * 4) = word;
    }
}

void make_k(Call &c, const Shape &s, int requests, random_bits &bits) {
    const int64_t each = (s.positions + s.page - 1) / s.page, pages = each * requests;
    const int64_t stride = (int64_t)s.page * 68 + 16 * (s.page % 32 / 8);
    uint8_t *pool = (uint8_t *)c.reserve((size_t)(pages * stride));
    if (s.zeros) {
        CHECK(cudaMemset(pool, 0, (size_t)(pages * stride)));
    } else {
        make_bytes<<<1024, 256>>>((uint32_t *)pool, pages * stride / 4, bits());
    }
    make_scales<<<1024, 256>>>(pool + s.page * 64, pages * s.page, s.page, stride, s.scales,
                               bits());
    CHECK(cudaDeviceSynchronize());
    std::vector<int32_t> table((size_t)pages);
    for (size_t i = 0; i < table.size(); i++) {
        table[i] = (int32_t)i;
    }
    std::shuffle(table.begin(), table.end(), bits);
    c.a.k.layout = TAMIS_K_MXFP4_PAGE;
    c.a.k.head_dim = 128;
    c.a.k.page_size = s.page;
    c.a.k.size = pages;
    c.a.k.stride = stride;
    c.a.k.codes = pool;
    c.a.rows.page_table = c.on_device(table);
    c.a.rows.page_table_stride = c.a.rows.page_table_width = each;
    c.a.rows.requests = requests;
}

void make_query(Call &c, const Shape &s, random_bits &bits) {
    tamis_query &q = c.a.query;
    const int64_t heads = (int64_t)s.rows * 32;
    std::vector<float> weights((size_t)heads);
    for (size_t i = 0; i < weights.size(); i++) {
        weights[i] = ((float)(bits() % 2001) - 1200.0f) * 1e-5f;
        if (s.weights == 1 && i / 32 % 3 == 0) {
            static const float odd[] = {INFINITY, 1e38f, 1e-38f, 1e-42f,
                                        -0.0f,    NAN,   -1e36f, 3e-39f};
            weights[i] = odd[bits() % (i / 32 % 2 ? 4 : 8)];
        }
    }
    q.heads = 32;
    q.head_dim = 128;
    q.weights_type = TAMIS_F32;
    q.codes = (uint8_t *)c.reserve((size_t)heads * 64);
    q.scales = (uint8_t *)c.reserve((size_t)heads * 4);
    if (s.zeros) {
        CHECK(cudaMemset((void *)q.codes, 0, (size_t)heads * 64));
    } else {
        make_bytes<<<1024, 256>>>((uint32_t *)q.codes, heads * 16, bits());
    }
    /* Wide heads in one row of eight or so, or in every row. */
    make_scales<<<1024, 256>>>((uint8_t *)q.scales, heads, heads, 0, s.scales, bits());
    if (s.scales == 2) {
        int64_t calm = std::min<int64_t>(heads, 7 * 32);
        make_scales<<<1024, 256>>>((uint8_t *)q.scales, calm, heads, 0, 0, bits());
    }
    q.weights = c.on_device(weights);
    if (s.w16) {
        std::vector<uint16_t> half(weights.size());
        for (size_t i = 0; i < half.size(); i++) {
            half[i] = tamis_bf16_from_f32(weights[i]);
        }
        q.weights_type = TAMIS_BF16;
        q.weights = c.on_device(half);
    }
    q.codes_row_stride = 32 * 64;
    q.codes_head_stride = 64;
    q.scales_row_stride = 32 * 4;
    q.scales_head_stride = 4;
    q.weights_row_stride = 32;
}

/* Rows of requests in order; returns how many requests. */
int make_rows(Call &c, const Shape &s, random_bits &bits) {
    std::vector<int32_t> request((size_t)s.rows), ks((size_t)s.rows), ke((size_t)s.rows);
    int32_t at = 0, start = 0, end = 0;
    for (int r = 0; r < s.rows; r++) {
        bool next =
            r > 0 && (s.requests ? (int64_t)r * s.requests / s.rows != at : bits() % 7 == 0);
        at += next;
        if (r == 0 || next) {
            start = s.starts ? (int32_t)(bits() % (unsigned)(s.positions / 2 + 1)) : 0;
            end = (int32_t)(bits() % (unsigned)(s.positions + 1));
        }
        end = std::min<int32_t>(end + 1, (int32_t)s.positions);
        request[(size_t)r] = at;
        ks[(size_t)r] = s.starts == 2 ? (int32_t)(bits() % (unsigned)(s.positions + 1)) : start;
        ke[(size_t)r] = s.ends == 0   ? (int32_t)(bits() % (unsigned)(s.positions + 3)) - 1
                        : s.ends == 1 ? end
                                      : (int32_t)s.positions;
    }
    c.a.rows.count = s.rows;
    c.a.rows.request = at ? c.on_device(request) : nullptr;
    c.a.rows.ks = s.starts ? c.on_device(ks) : nullptr;
    c.a.rows.ke = c.on_device(ke);
    return at + 1;
}

void make(Call &c, const Shape &s, uint64_t seed) {
    random_bits bits(seed);
    c.a = {};
    c.a.numerics = s.round ? TAMIS_NUMERICS_BF16 : TAMIS_NUMERICS_EXACT;
    make_k(c, s, make_rows(c, s, bits), bits);
    make_query(c, s, bits);
    c.a.block_size = s.block;
    c.a.block_max_stride = (s.positions + s.block - 1) / s.block + 3;
    c.a.logits_type = s.logits ? s.logits : TAMIS_F32;
    c.a.columns = s.logits ? s.positions + 5 : 0;
    c.a.logits_stride = s.positions + 8;
}

} // namespace

#endif
