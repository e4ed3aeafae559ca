/* SPDX-License-Identifier: MIT */
/*
 * emulated.h: one CTA of CUDA code on a CPU, for tests of selection code by its own text. Every
 * thread is a fiber that runs until it meets a collective of its warp or a barrier; warps take
 * turns in random order and may run far ahead of each other, as on a GPU they may. A collective
 * whose lanes differ, a barrier that threads miss, a deadlock and a wild address end the program,
 * which says in which case.
 *
 * Between two waits a thread is never interrupted, so that a race inside a warp shows by the order
 * of its lanes alone. Fibers begin by ucontext and go on by _longjmp, which asks no kernel.
 *
 * Include before any .cuh; it has what those tested use of CUDA, and no more.
 */
#ifndef TESTS_CUDA_EMULATED_H
#define TESTS_CUDA_EMULATED_H

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <type_traits>
#include <ucontext.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TESTS_ASAN
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define TESTS_ASAN
#endif
#ifdef TESTS_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

#define __device__
#define __noinline__ __attribute__((noinline))

struct uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};

namespace emulated {

/* The same numbers everywhere: splitmix64. */
class Random {
  public:
    explicit Random(uint64_t seed) : state(seed) {
    }
    uint32_t bits() {
        uint64_t z = state += 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        return (uint32_t)(z >> 32);
    }
    uint32_t below(uint32_t n) {
        return bits() % n;
    }
    /* Nearly normal, from -6 to 6. */
    float normal() {
        float sum = -6.0f;
        for (int i = 0; i < 12; i++) {
            sum += (float)(bits() >> 8) * 0x1p-24f;
        }
        return sum;
    }

  private:
    uint64_t state;
};

enum class Wait : uint8_t { no, warp, cta, ended };

/* Collectives and barriers that must not meet one another. */
enum class Kind : uint8_t {
    none,
    add,
    most,
    least,
    ballot,
    shuffle,
    exchange,
    product,
    up,
    down,
    sync_warp,
    sync,
    sync_or
};

/* A stack, as AddressSanitizer wants to be told of it when another is left for it. */
struct Stack {
    const void *bottom;
    size_t bytes;
    void *frames; /* the sanitizer's own, while another stack is in use */

    /* `from`: the stack that is left, or NULL: for good. */
    void enter([[maybe_unused]] Stack *from) const {
#ifdef TESTS_ASAN
        __sanitizer_start_switch_fiber(from ? &from->frames : nullptr, bottom, bytes);
#endif
    }
    /* `from` becomes what was left for this one. */
    void entered([[maybe_unused]] Stack *from) {
#ifdef TESTS_ASAN
        __sanitizer_finish_switch_fiber(frames, from ? &from->bottom : nullptr,
                                        from ? &from->bytes : nullptr);
#endif
    }
};

struct Fiber {
    ucontext_t begin;
    jmp_buf at;
    Stack stack;
    bool begun;
    Wait wait;
    Kind kind;
    uint8_t turn;      /* which of two lines of values the next collective takes */
    uint32_t value[2]; /* the lane may be one collective ahead of others */
};

constexpr int kMaxThreads = 512;
constexpr size_t kStack = 64 << 10; /* behind as much that traps; a multiple of any page */

class Cta {
  public:
    Cta() {
        char *const memory = (char *)mmap(nullptr, 2 * kMaxThreads * kStack, PROT_NONE,
                                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (size_t t = 0; t < kMaxThreads; t++) {
            char *const bottom = memory + (2 * t + 1) * kStack;
            if (memory == MAP_FAILED || mprotect(bottom, kStack, PROT_READ | PROT_WRITE) != 0) {
                fail("no memory");
            }
            fibers[t].stack = {bottom, kStack, nullptr};
        }
    }

    /* A wild address ends the program by fail(), too: on a stack that no thread can have spoilt. */
    static void catch_wild_addresses() {
#ifndef TESTS_ASAN /* which tells more */
        static char memory[kStack];
        stack_t other = {};
        other.ss_sp = memory;
        other.ss_size = sizeof memory;
        struct sigaction action = {};
        action.sa_flags = SA_ONSTACK;
        action.sa_handler = on_wild_address;
        if (sigaltstack(&other, nullptr) != 0 || sigaction(SIGSEGV, &action, nullptr) != 0 ||
            sigaction(SIGBUS, &action, nullptr) != 0) {
            abort();
        }
#endif
    }

    /* Runs body() as each of `count` threads until all have ended. `what` is told of a fault. */
    void run(int count, uint64_t seed, void (*body)(), const char *what) {
        threads = count;
        name = what;
        entry = body;
        order = Random(seed);
        for (int t = 0; t < threads; t++) {
            fibers[t].begun = false;
            fibers[t].wait = Wait::no;
            fibers[t].turn = 0;
            fibers[t].stack.frames = nullptr;
        }
        while (step()) {
        }
    }

    /* Ends the fiber's turn until those it waits for have come. */
    void meet(Wait wait, Kind kind) {
        Fiber &own = fibers[current];
        own.wait = wait;
        own.kind = kind;
        if (_setjmp(own.at) == 0) {
            stack.enter(&own.stack);
            _longjmp(scheduler, 1);
        }
        own.stack.entered(&stack);
    }

    /* The values of a warp's lanes, valid until this lane's next but one collective. */
    struct Lanes {
        const Fiber *first;
        int turn;
        uint32_t operator[](int lane) const {
            return first[lane].value[turn];
        }
    };
    Lanes gather(uint32_t value, Kind kind) {
        Fiber &own = fibers[current];
        const int turn = own.turn ^= 1;
        own.value[turn] = value;
        meet(Wait::warp, kind);
        return {&fibers[current / 32 * 32], turn};
    }

    /* Whether any thread's value is not 0, after a barrier of all. */
    bool any(uint32_t value) {
        Fiber &own = fibers[current];
        const int turn = own.turn ^= 1;
        own.value[turn] = value;
        meet(Wait::cta, Kind::sync_or);
        return found;
    }

    /* By write: signals end here. */
    [[noreturn]] void fail(const char *why) const {
        const char *const parts[] = {name, ": ", why, "\n"};
        for (const char *part : parts) {
            if (write(STDERR_FILENO, part, strlen(part)) < 0) {
                break;
            }
        }
        _exit(1);
    }

    int current = 0;                /* thread */
    uint8_t *shared_base = nullptr; /* what shared addresses are counted from */

  private:
    static void start();
    static void on_wild_address(int);

    void resume(int t) {
        Fiber &fiber = fibers[t];
        current = t;
        if (_setjmp(scheduler) != 0) {
            stack.entered(nullptr);
            return;
        }
        fiber.stack.enter(&stack);
        if (fiber.begun) {
            _longjmp(fiber.at, 1);
        }
        fiber.begun = true;
        getcontext(&fiber.begin);
        fiber.begin.uc_stack.ss_sp = (void *)fiber.stack.bottom;
        fiber.begin.uc_stack.ss_size = kStack;
        fiber.begin.uc_link = nullptr;
        makecontext(&fiber.begin, start, 0);
        setcontext(&fiber.begin);
    }

    /* Lanes that can go on do, in some order; then a whole collective is over. */
    bool run_warp(int warp) {
        Fiber *const lanes = fibers + 32 * warp;
        const int first = (int)order.below(32);
        bool ran = false;
        int met = 0;
        for (int i = 0; i < 32; i++) {
            const int lane = (13 * i + first) & 31;
            if (lanes[lane].wait == Wait::no) {
                resume(32 * warp + lane);
                ran = true;
            }
        }
        for (int i = 0; i < 32; i++) {
            met += lanes[i].wait == Wait::warp;
        }
        if (met > 0 && met < 32) {
            fail("lanes miss a collective of their warp");
        }
        for (int i = 0; i < met; i++) {
            if (lanes[i].kind != lanes[0].kind) {
                fail("lanes of a warp meet in different collectives");
            }
            lanes[i].wait = Wait::no;
        }
        return ran;
    }

    /* A turn of every warp; whether there is one more. */
    bool step() {
        const int warps = threads / 32, first = (int)order.below((uint32_t)warps);
        const int stride = 1 + 2 * (int)order.below((uint32_t)warps / 2); /* odd: every warp */
        bool ran = false;
        for (int i = 0; i < warps; i++) {
            const int warp = (first + stride * i) % warps;
            for (int ahead = (int)order.below(64); ahead >= 0 && run_warp(warp); ahead--) {
                ran = true;
            }
        }
        int waiting = 0, ended = 0;
        for (int t = 0; t < threads; t++) {
            waiting += fibers[t].wait == Wait::cta;
            ended += fibers[t].wait == Wait::ended;
        }
        if (waiting == threads) {
            release();
        } else if (!ran && ended < threads) {
            fail(ended ? "threads ended that a barrier waits for" : "deadlock");
        }
        return ended < threads;
    }

    /* The barrier that all threads are at. */
    void release() {
        found = false;
        for (int t = 0; t < threads; t++) {
            if (fibers[t].kind != fibers[0].kind) {
                fail("threads meet in different barriers");
            }
            found |= fibers[t].value[fibers[t].turn] != 0;
            fibers[t].wait = Wait::no;
        }
    }

    Fiber fibers[kMaxThreads];
    jmp_buf scheduler;
    Stack stack = {}; /* the scheduler's */
    int threads = 0;
    const char *name = "";
    void (*entry)() = nullptr;
    Random order{0};
    bool found = false;
};

inline Cta &cta() {
    static Cta only;
    return only;
}

inline void Cta::on_wild_address(int) {
    cta().fail("a wild address");
}

inline void Cta::start() {
    Cta &own = cta();
    Fiber &fiber = own.fibers[own.current];
    fiber.stack.entered(&own.stack);
    own.entry();
    fiber.wait = Wait::ended;
    own.stack.enter(nullptr);
    _longjmp(own.scheduler, 1);
}

struct Index {
    struct {
        operator uint32_t() const {
            return (uint32_t)cta().current;
        }
    } x;
};

/* A GPU's arithmetic makes one NaN. */
inline float number(float x) {
    const uint32_t bits = 0x7FFFFFFFu;
    if (x != x) {
        memcpy(&x, &bits, 4);
    }
    return x;
}

} // namespace emulated

static const emulated::Index threadIdx;

template <class A, class B> inline typename std::common_type<A, B>::type min(A a, B b) {
    using Both = typename std::common_type<A, B>::type;
    return (Both)b < (Both)a ? (Both)b : (Both)a;
}
template <class A, class B> inline typename std::common_type<A, B>::type max(A a, B b) {
    using Both = typename std::common_type<A, B>::type;
    return (Both)a < (Both)b ? (Both)b : (Both)a;
}
inline uint2 make_uint2(uint32_t x, uint32_t y) {
    return {x, y};
}
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
    return {x, y, z, w};
}
inline uint32_t __float_as_uint(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
inline float __uint_as_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
inline float __fadd_rn(float a, float b) {
    return emulated::number(a + b);
}
inline float __fsub_rn(float a, float b) {
    return emulated::number(a - b);
}
inline float __fmul_rn(float a, float b) {
    return emulated::number(a * b);
}
inline float __fmaf_rn(float a, float b, float c) {
    return emulated::number(fmaf(a, b, c));
}
inline float __fdividef(float a, float b) {
    return a / b;
}
inline int __popc(uint32_t x) {
    return __builtin_popcount(x);
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline int __clz(int x) {
    return x ? __builtin_clz((uint32_t)x) : 32;
}
inline uint32_t __dp4a(uint32_t a, uint32_t b, uint32_t c) {
    for (int i = 0; i < 32; i += 8) {
        c += (a >> i & 255u) * (b >> i & 255u);
    }
    return c;
}
inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t by) {
    return (uint32_t)(((uint64_t)high << 32 | low) << (by & 31) >> 32);
}
template <class T> inline T __ldg(const T *p) {
    return *p;
}
inline size_t __cvta_generic_to_shared(const void *p) {
    return (size_t)((const uint8_t *)p - emulated::cta().shared_base);
}
inline void *__cvta_shared_to_generic(size_t at) {
    return emulated::cta().shared_base + at;
}
inline uint32_t atomicAdd(uint32_t *p, uint32_t x) {
    const uint32_t before = *p;
    *p += x;
    return before;
}
inline uint32_t atomicOr(uint32_t *p, uint32_t x) {
    const uint32_t before = *p;
    *p |= x;
    return before;
}

inline void __syncthreads() {
    emulated::cta().meet(emulated::Wait::cta, emulated::Kind::sync);
}
inline bool __syncthreads_or(bool x) {
    return emulated::cta().any(x);
}
inline emulated::Cta::Lanes gather_lanes(uint32_t mask, uint32_t x, emulated::Kind kind) {
    if (mask != 0xFFFFFFFFu) {
        emulated::cta().fail("a collective of some lanes: not emulated");
    }
    return emulated::cta().gather(x, kind);
}
inline uint32_t __reduce_add_sync(uint32_t mask, uint32_t x) {
    const auto lanes = gather_lanes(mask, x, emulated::Kind::add);
    uint32_t sum = 0;
    for (int i = 0; i < 32; i++) {
        sum += lanes[i];
    }
    return sum;
}
inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t x) {
    const auto lanes = gather_lanes(mask, x, emulated::Kind::most);
    for (int i = 0; i < 32; i++) {
        x = max(x, lanes[i]);
    }
    return x;
}
inline uint32_t __reduce_min_sync(uint32_t mask, uint32_t x) {
    const auto lanes = gather_lanes(mask, x, emulated::Kind::least);
    for (int i = 0; i < 32; i++) {
        x = min(x, lanes[i]);
    }
    return x;
}
inline uint32_t __ballot_sync(uint32_t mask, bool yes) {
    const auto lanes = gather_lanes(mask, yes, emulated::Kind::ballot);
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++) {
        bits |= lanes[i] << i;
    }
    return bits;
}
template <class T> inline T __shfl_sync(uint32_t mask, T x, int from) {
    static_assert(sizeof(T) == 4 && std::is_integral<T>::value, "a lane's word");
    return (T)gather_lanes(mask, (uint32_t)x, emulated::Kind::shuffle)[from & 31];
}
inline uint32_t __shfl_xor_sync(uint32_t mask, uint32_t x, int by) {
    return gather_lanes(mask, x, emulated::Kind::exchange)[((int)threadIdx.x & 31) ^ by];
}
inline bool __any_sync(uint32_t mask, bool x) {
    return __ballot_sync(mask, x) != 0;
}
template <class T> inline T __shfl_up_sync(uint32_t mask, T x, int by) {
    static_assert(sizeof(T) == 4 && std::is_integral<T>::value, "a lane's word");
    const auto lanes = gather_lanes(mask, (uint32_t)x, emulated::Kind::up);
    const int lane = (int)(threadIdx.x & 31);
    return lane >= by ? (T)lanes[lane - by] : x;
}
template <class T> inline T __shfl_down_sync(uint32_t mask, T x, int by) {
    static_assert(sizeof(T) == 4 && std::is_integral<T>::value, "a lane's word");
    const auto lanes = gather_lanes(mask, (uint32_t)x, emulated::Kind::down);
    const int lane = (int)(threadIdx.x & 31);
    return lane + by < 32 ? (T)lanes[lane + by] : x;
}

#endif
