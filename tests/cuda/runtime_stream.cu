// SPDX-License-Identifier: MIT
/*
 * runtime_stream.cu: the library among a program's own kernels, on streams of the CUDA runtime API
 * in the context that it made. The program's kernels before and after each call spoil whatever
 * would be read too early or too late, so that work on any other stream, or out of order, shows.
 */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include <tamis/tamis.h>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        cudaError_t status_ = (call);                                                              \
        if (status_ != cudaSuccess) {                                                              \
            printf("FAILED: %s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status_));        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

namespace {

enum { ROWS = 37, COLUMNS = 3000, TOPK = 64, PAD = 3, SKIPPED = 77, ROUNDS = 3 };
enum { HEADS = 8, DIM = 64, K_ROWS = 700, K_BYTES = 34, BLOCKS = 12 };
constexpr int64_t kOut = (int64_t)ROWS * (TOPK + PAD);

/* Few distinct values, so that equal scores lie on every cut. */
__host__ __device__ float score_of(int row, int column, int round) {
    uint32_t x = (uint32_t)(row * 7919 + column * 104729 + round * 15485863 + 12345);
    x ^= x >> 13;
    x *= 0x5bd1e995u;
    x ^= x >> 15;
    return (float)((int)(x % 401) - 200) * 0.25f;
}

__host__ __device__ uint8_t byte_of(int64_t i, int round) {
    uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)round * 40503u;
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    return (uint8_t)(x >> 24);
}

/* Waits for the host, who lets go once everything is queued; not for ever, in case a call waited
 * for this. */
__global__ void late(const volatile int *go, int *gave_up) {
    const long long start = clock64();
    while (*go == 0) {
        if (clock64() - start > 20'000'000'000) {
            *gave_up = 1;
            return;
        }
    }
}

__global__ void write_scores(float *scores, const int *round, bool spoil) {
    for (int c = (int)threadIdx.x; c < COLUMNS; c += (int)blockDim.x) {
        int r = (int)blockIdx.x;
        scores[(int64_t)r * COLUMNS + c] = spoil ? (float)c : score_of(r, c, *round);
    }
}

/* Bytes of K rows or queries; scales in their last two bytes stay close together. */
__global__ void write_bytes(uint8_t *bytes, int64_t count, const int *round, bool spoil) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint8_t value = byte_of(i, *round);
        bytes[i] = spoil ? 0 : i % K_BYTES >= 32 ? (uint8_t)(124 + value % 6) : value;
    }
}

/* Takes a result away and spoils where it lay. */
__global__ void take(int32_t *from, int32_t *to, int64_t count) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        to[i] = from[i];
        from[i] = -77;
    }
}

void require(bool good, const char *what, const char *where, long long at) {
    if (!good) {
        printf("FAILED: %s, %s, at %lld\n", where, what, at);
        exit(1);
    }
}

void require_ok(tamis_status status, const tamis_error &error) {
    if (status != TAMIS_OK) {
        printf("FAILED: status %d: %s: required %s, found %s\n", status, error.argument,
               error.required, error.found);
        exit(1);
    }
}

/* Everything on the device, made with the runtime's allocator. */
struct Work {
    float *scores, *weights;
    uint8_t *keys, *codes, *scales, *workspace;
    int32_t *topk, *source, *blocks, *lengths, *took_topk, *took_source, *took_blocks;
    int *round, *gave_up;
    int *go; /* pinned */
    tamis_topk_args topk_args;
    tamis_source_args source_args;
};

template <class T> T *device(int64_t count) {
    T *memory = nullptr;
    CHECK(cudaMalloc((void **)&memory, (size_t)count * sizeof(T)));
    return memory;
}

/* A row's K: 32 code bytes, two scales. Queries' codes and scales are written as if they were one
 * such row a head. */
tamis_source_args source_over(uint8_t *keys, uint8_t *heads, float *weights, int32_t *lengths) {
    tamis_source_args a;
    tamis_source_args_default(&a);
    a.numerics = TAMIS_NUMERICS_EXACT;
    a.k.layout = TAMIS_K_MXFP4_ROW;
    a.k.head_dim = DIM;
    a.k.size = K_ROWS;
    a.k.stride = K_BYTES;
    a.k.codes = keys;
    a.rows.count = ROWS;
    a.rows.ke = lengths;
    a.query.heads = HEADS;
    a.query.head_dim = DIM;
    a.query.weights_type = TAMIS_F32;
    a.query.codes = heads;
    a.query.scales = heads + 32;
    a.query.weights = weights;
    a.query.codes_row_stride = a.query.scales_row_stride = HEADS * K_BYTES;
    a.query.codes_head_stride = a.query.scales_head_stride = K_BYTES;
    a.query.weights_row_stride = HEADS;
    a.block_size = 8;
    a.topk_blocks = BLOCKS;
    a.blocks_stride = BLOCKS;
    a.selection.topk = TOPK;
    a.selection.positions_stride = TOPK + PAD;
    return a;
}

std::vector<float> weights() {
    std::vector<float> w(ROWS * HEADS);
    for (size_t i = 0; i < w.size(); i++) {
        w[i] = (float)((int)(i * 37 % 23) - 9) * 0.125f;
    }
    return w;
}

std::vector<int32_t> lengths() {
    std::vector<int32_t> l(ROWS);
    for (int r = 0; r < ROWS; r++) {
        l[r] = r * 19 % (K_ROWS + 1);
    }
    return l;
}

Work make_work(const tamis_cuda *cuda) {
    Work w = {};
    w.scores = device<float>((int64_t)ROWS * COLUMNS);
    w.keys = device<uint8_t>(K_ROWS * K_BYTES);
    w.codes = device<uint8_t>(ROWS * HEADS * K_BYTES);
    w.weights = device<float>(ROWS * HEADS);
    w.lengths = device<int32_t>(ROWS);
    w.topk = device<int32_t>(kOut);
    w.source = device<int32_t>(kOut);
    w.blocks = device<int32_t>(ROWS * BLOCKS);
    w.took_topk = device<int32_t>(kOut);
    w.took_source = device<int32_t>(kOut);
    w.took_blocks = device<int32_t>(ROWS * BLOCKS);
    w.round = device<int>(1);
    w.gave_up = device<int>(1);
    CHECK(cudaMemset(w.gave_up, 0, sizeof(int)));
    CHECK(cudaMallocHost((void **)&w.go, sizeof(int)));
    CHECK(cudaMemcpy(w.weights, weights().data(), ROWS * HEADS * 4, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(w.lengths, lengths().data(), ROWS * 4, cudaMemcpyHostToDevice));
    tamis_topk_args &t = w.topk_args;
    tamis_topk_args_default(&t);
    t.logits_type = TAMIS_F32;
    t.rows.count = ROWS;
    t.logits = w.scores;
    t.logits_stride = t.width = COLUMNS;
    t.selection.topk = TOPK;
    t.selection.positions = w.topk;
    t.selection.positions_stride = TOPK + PAD;
    w.source_args = source_over(w.keys, w.codes, w.weights, w.lengths);
    w.source_args.blocks = w.blocks;
    w.source_args.selection.positions = w.source;
    int64_t bytes = tamis_cuda_source_workspace(cuda, &w.source_args);
    require(bytes > 0, "a workspace", "source", bytes);
    w.source_args.workspace = w.workspace = device<uint8_t>(bytes);
    w.source_args.workspace_bytes = bytes;
    return w;
}

/* The program's own kernels: inputs, when the host lets them; then the results taken and the inputs
 * spoilt. */
void before(const Work &w, cudaStream_t stream) {
    late<<<1, 1, 0, stream>>>(w.go, w.gave_up);
    write_scores<<<ROWS, 256, 0, stream>>>(w.scores, w.round, false);
    write_bytes<<<8, 256, 0, stream>>>(w.keys, K_ROWS * K_BYTES, w.round, false);
    write_bytes<<<8, 256, 0, stream>>>(w.codes, ROWS * HEADS * K_BYTES, w.round, false);
    CHECK(cudaGetLastError());
}

void after(const Work &w, cudaStream_t stream) {
    take<<<8, 256, 0, stream>>>(w.topk, w.took_topk, kOut);
    take<<<8, 256, 0, stream>>>(w.source, w.took_source, kOut);
    take<<<8, 256, 0, stream>>>(w.blocks, w.took_blocks, ROWS * BLOCKS);
    write_scores<<<ROWS, 256, 0, stream>>>(w.scores, w.round, true);
    write_bytes<<<8, 256, 0, stream>>>(w.keys, K_ROWS * K_BYTES, w.round, true);
    CHECK(cudaGetLastError());
}

void queue(const tamis_cuda *cuda, const Work &w, cudaStream_t stream) {
    tamis_error error = {};
    before(w, stream);
    require_ok(tamis_cuda_topk(cuda, &w.topk_args, stream, &error), error);
    require_ok(tamis_cuda_source(cuda, &w.source_args, stream, &error), error);
    after(w, stream);
}

std::vector<int32_t> pull(const int *from, int64_t count) {
    std::vector<int32_t> host((size_t)count);
    CHECK(cudaMemcpy(host.data(), from, (size_t)count * 4, cudaMemcpyDeviceToHost));
    return host;
}

/* By sorting: higher first, then the lower column; the first TOPK of them, ascending. */
void check_topk(const std::vector<int32_t> &got, int round, const char *where) {
    std::vector<int> order(COLUMNS);
    for (int r = 0; r < ROWS; r++) {
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
            return score_of(r, a, round) > score_of(r, b, round);
        });
        std::sort(order.begin(), order.begin() + TOPK);
        for (int i = 0; i < TOPK; i++) {
            int64_t at = (int64_t)r * (TOPK + PAD) + i;
            require(got[at] == order[i], "topk", where, at);
        }
        require(got[(int64_t)r * (TOPK + PAD) + TOPK] == -77, "padding", where, r);
    }
}

/* By the CPU's ref. */
void check_source(const Work &w, int round, const char *where) {
    tamis_error error = {};
    tamis_backend *ref = nullptr;
    std::vector<uint8_t> keys(K_ROWS * K_BYTES), heads(ROWS * HEADS * K_BYTES);
    std::vector<float> weight = weights();
    std::vector<int32_t> length = lengths(), positions(kOut), blocks(ROWS * BLOCKS);
    for (std::vector<uint8_t> *bytes : {&keys, &heads}) {
        for (size_t i = 0; i < bytes->size(); i++) {
            uint8_t value = byte_of((int64_t)i, round);
            (*bytes)[i] = i % K_BYTES >= 32 ? (uint8_t)(124 + value % 6) : value;
        }
    }
    tamis_source_args a = source_over(keys.data(), heads.data(), weight.data(), length.data());
    a.blocks = blocks.data();
    a.selection.positions = positions.data();
    a.workspace_bytes = tamis_source_workspace(&a, 1);
    a.workspace = aligned_alloc(64, (size_t)(a.workspace_bytes + 63) / 64 * 64);
    require_ok(tamis_backend_create("ref", &ref, &error), error);
    require_ok(tamis_source(ref, &a, 0, 1, &error), error);
    tamis_backend_destroy(ref);
    free(a.workspace);
    std::vector<int32_t> got = pull(w.took_source, kOut),
                         listed = pull(w.took_blocks, ROWS * BLOCKS);
    require(listed == blocks, "published blocks", where, 0);
    for (int64_t at = 0; at < kOut; at++) {
        bool padding = at % (TOPK + PAD) >= TOPK;
        require(got[(size_t)at] == (padding ? -77 : positions[(size_t)at]), "source", where, at);
    }
}

void check(const Work &w, int round, const char *where) {
    check_topk(pull(w.took_topk, kOut), round, where);
    check_source(w, round, where);
}

/* Lets the work go that was queued, and waits for it. */
void finish(const Work &w, cudaStream_t stream, const char *where) {
    *(volatile int *)w.go = 1;
    CHECK(cudaStreamSynchronize(stream));
    require(pull(w.gave_up, 1)[0] == 0, "a call waited for the stream", where, 0);
}

void set_round(const Work &w, int round) {
    CHECK(cudaDeviceSynchronize());
    *w.go = 0;
    CHECK(cudaMemcpy(w.round, &round, sizeof round, cudaMemcpyHostToDevice));
    CHECK(cudaDeviceSynchronize());
}

void on_stream(const tamis_cuda *cuda, const Work &w, cudaStream_t stream, const char *where) {
    for (int round = 0; round < ROUNDS; round++) {
        set_round(w, round);
        queue(cuda, w, stream);
        finish(w, stream, where);
        check(w, round, where);
    }
}

void in_a_graph(const tamis_cuda *cuda, const Work &w, cudaStream_t stream, const char *where) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    queue(cuda, w, stream);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int round = 10; round < 10 + ROUNDS; round++) {
        set_round(w, round);
        CHECK(cudaGraphLaunch(exec, stream));
        finish(w, stream, where);
        check(w, round, where);
    }
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
}

} // namespace

int main() {
    int devices = 0, least = 0, greatest = 0;
    cudaStream_t plain, apart, urgent;
    tamis_cuda *cuda = nullptr;
    tamis_error error = {};
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("SKIPPED: no NVIDIA GPU\n");
        return SKIPPED;
    }
    CHECK(cudaSetDevice(0));
    CHECK(cudaFree(nullptr)); /* makes the runtime's context */
    require_ok(tamis_cuda_create(&cuda, &error), error);
    Work w = make_work(cuda);
    set_round(w, 0);
    before(w, nullptr); /* loads the program's kernels, and marks outputs as taken; the library's
                           first call is a capture */
    after(w, nullptr);
    finish(w, nullptr, "warm-up");
    CHECK(cudaStreamCreate(&plain));
    CHECK(cudaStreamCreateWithFlags(&apart, cudaStreamNonBlocking));
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CHECK(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, greatest));
    in_a_graph(cuda, w, plain, "graph of cudaStreamCreate's stream");
    in_a_graph(cuda, w, apart, "graph of a non-blocking stream");
    on_stream(cuda, w, plain, "cudaStreamCreate");
    on_stream(cuda, w, apart, "non-blocking stream");
    on_stream(cuda, w, urgent, "stream of high priority");
    on_stream(cuda, w, cudaStreamPerThread, "cudaStreamPerThread");
    on_stream(cuda, w, nullptr, "the default stream");
    tamis_cuda_destroy(cuda);
    CHECK(cudaDeviceSynchronize());
    printf("gpu: five kinds of runtime streams and two graphs, every row\n");
    return 0;
}
