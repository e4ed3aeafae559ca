/* SPDX-License-Identifier: MIT */
/* unlucky.h: rows of scores that a selection may get wrong, for the emulated.* programs. */
#ifndef TESTS_CUDA_UNLUCKY_H
#define TESTS_CUDA_UNLUCKY_H

#include "emulated.h"

#include <stdio.h>

#include <tamis/tamis.h>

#define LENGTH(array) (uint32_t)(sizeof(array) / sizeof(array)[0])

using emulated::Random;

/* What the scores of a row have in common. */
struct Mix {
    Random &random;
    float c;          /* any magnitude */
    uint32_t percent; /* 1 to 40 */
    uint32_t bits;    /* any */
    int columns;

    bool some() const {
        return random.below(100) < percent;
    }
    bool half() const {
        return random.below(2) != 0;
    }
    /* Of a quarter of the columns, one of each quad. */
    bool own(int i) const {
        return i % 4 == (int)(bits % 4);
    }
    float normal() const {
        return random.normal();
    }
};

constexpr float kInfinity = INFINITY, kHuge = 3.4e38f;

struct ScoreKind {
    const char *name;
    float (*score)(const Mix &m, int i);
};

const ScoreKind kScoreKinds[] = {
    {"equal", [](const Mix &m, int) { return m.c; }},
    {"NaN", [](const Mix &, int) { return NAN; }},
    {"-infinity", [](const Mix &, int) { return -kInfinity; }},
    {"infinity", [](const Mix &, int) { return kInfinity; }},
    {"infinities", [](const Mix &m, int) { return m.half() ? kInfinity : -kInfinity; }},
    {"zeros", [](const Mix &m, int) { return m.half() ? 0.0f : -0.0f; }},
    {"normal", [](const Mix &m, int) { return m.normal(); }},
    {"mostly zero", [](const Mix &m, int) { return max(0.0f, m.normal() - 2.0f); }},
    {"few values", [](const Mix &m, int) { return (float)(m.random.below(m.percent) + 1); }},
    {"any bits", [](const Mix &m, int) { return __uint_as_float(m.random.bits()); }},
    {"subnormal", [](const Mix &m, int) { return __uint_as_float(m.random.below(64)); }},
    {"overflowing differences",
     [](const Mix &m, int) {
         return (m.half() ? 1.0f : -1.0f) * kHuge * ((float)m.random.below(1000) / 1000.0f);
     }},
    {"ulps above 1", [](const Mix &m, int) { return 1.0f + (float)m.random.below(40) * 0x1p-23f; }},
    {"some infinite", [](const Mix &m, int) { return m.some() ? kInfinity : m.normal(); }},
    {"some NaN", [](const Mix &m, int) { return m.some() ? NAN : m.normal(); }},
    {"mostly NaN", [](const Mix &m, int) { return m.some() ? m.normal() : NAN; }},
    {"mostly -infinity", [](const Mix &m, int) { return m.some() ? m.normal() : -kInfinity; }},
    {"one value and the lowest",
     [](const Mix &m, int) { return m.random.below(50) == 0 ? -kHuge : m.c; }},
    {"two neighbours and -infinity",
     [](const Mix &m, int) {
         return m.random.below(50) == 0 ? -kInfinity : m.half() ? m.c : nextafterf(m.c, kInfinity);
     }},
    {"one far above equal ones",
     [](const Mix &m, int i) {
         return i == (int)(m.bits % (uint32_t)m.columns) ? m.c * 100.0f : m.c;
     }},
    {"powers of two",
     [](const Mix &m, int) { return ldexpf(1.0f, (int)m.random.below(250) - 125); }},
    {"negative powers of two",
     [](const Mix &m, int) { return -ldexpf(1.0f, (int)m.random.below(250) - 125); }},
    {"halvings above a value",
     [](const Mix &m, int) { return m.c + ldexpf(fabsf(m.c), -(int)m.random.below(30)); }},
    {"heavy tails",
     [](const Mix &m, int) {
         const float x = m.normal() * m.normal() * m.normal() * m.normal();
         return x * x * x;
     }},
    {"a low half", [](const Mix &m, int i) { return i < m.columns / 2 ? -3e38f : m.normal(); }},
    {"around 0 and one value",
     [](const Mix &m, int i) {
         return ldexpf(m.normal(), -(int)m.random.below(40)) + (i % 97 == 0 ? m.c : 0.0f);
     }},
    {"near one value",
     [](const Mix &m, int) { return (m.c == 0.0f ? 1.0f : m.c) * (1.0f + m.normal() * 1e-6f); }},
    {"tiny and huge",
     [](const Mix &m, int) {
         const float x = m.normal();
         return x < 2.0f ? x * 1e-38f : x * 3e38f;
     }},
    {"huge among subnormal",
     [](const Mix &m, int) { return m.normal() * (m.some() ? 1e30f : 1e-40f); }},
    {"a lane's infinities",
     [](const Mix &m, int i) { return m.own(i)   ? kInfinity
                                      : m.half() ? NAN
                                                 : -kInfinity; }},
    {"a lane's -infinities", [](const Mix &m, int i) { return m.own(i) ? -kInfinity : NAN; }},
    {"a lane's huge ones",
     [](const Mix &m, int i) {
         return m.own(i) ? kHuge : m.random.below(3) != 0 ? -kHuge : m.half() ? -kInfinity : NAN;
     }},
    {"a lane's subnormal ones",
     [](const Mix &m, int i) {
         return m.own(i)                 ? 1e-40f * (float)(1 + m.random.below(3))
                : m.random.below(3) != 0 ? -kHuge
                : m.half()               ? -kInfinity
                                         : 0.0f;
     }},
    {"falling", [](const Mix &, int i) { return -(float)i; }},
    {"rising", [](const Mix &, int i) { return (float)i; }},
    {"the first the best, with ties",
     [](const Mix &m, int i) {
         return i < 1024 ? (float)(5 + m.random.below(3)) : (float)m.random.below(5);
     }},
    {"mostly equal to the cut",
     [](const Mix &m, int i) { return i < 1500                 ? 1.0f
                                      : m.random.below(3) == 0 ? 1.0f
                                                               : -1.0f; }},
    {"31 to 34 of each value", /* a cut's bin holds 32 */
     [](const Mix &m, int i) {
         return -(float)((uint32_t)i * 7919u % (uint32_t)m.columns / (31u + m.bits % 4));
     }},
    {"shared leading bits",
     [](const Mix &m, int) {
         return __uint_as_float((m.bits & 0xFFFF0000u) | m.random.below(1u << 18));
     }},
};

constexpr uint32_t kNormal = 6; /* of kScoreKinds */

/* Cases of a run, of which a sanitizer's does fewer. */
constexpr uint64_t cases_of([[maybe_unused]] uint64_t plain, [[maybe_unused]] uint64_t sanitized) {
#ifdef TESTS_ASAN
    return sanitized;
#else
    return plain;
#endif
}

/* Whether nothing is wrong (NULL); else says of which case. */
inline bool is_right(const char *name, const char *wrong) {
    if (wrong) {
        printf("%s: %s is wrong\n", name, wrong);
        fflush(stdout); /* a later case may end the program */
    }
    return wrong == nullptr;
}

/* The CPU's plain C, for programs that link it: ask(reference, error) is one call of it. */
template <class Ask> bool ask_reference(const char *name, Ask ask) {
    static tamis_backend *reference;
    tamis_error error;
    if ((!reference && tamis_backend_create("ref", &reference, &error) != TAMIS_OK) ||
        ask(reference, &error) != TAMIS_OK) {
        printf("%s: the CPU refuses %s (%s)\n", name, error.argument, error.found);
        return false;
    }
    return true;
}

/* The main of a program: [first case [cases]], else `cases` from 0 on. holds(n): case n. */
inline int run_cases(int argc, char **argv, uint64_t cases, bool (*holds)(uint64_t)) {
    const uint64_t first = argc > 1 ? strtoull(argv[1], nullptr, 10) : 0;
    cases = argc > 2 ? strtoull(argv[2], nullptr, 10) : argc > 1 ? 1 : cases;
    uint64_t failed = 0;
    emulated::Cta::catch_wild_addresses();
    for (uint64_t i = 0; i < cases; i++) {
        failed += !holds(first + i);
    }
    printf("%llu cases, %llu wrong\n", (unsigned long long)cases, (unsigned long long)failed);
    return failed != 0;
}

inline Mix mix_of(Random &random, int columns) {
    const float scale = random.normal() * ldexpf(1.0f, (int)random.below(200) - 100);
    const uint32_t percent = 1 + random.below(40);
    return {random, scale, percent, random.bits(), columns};
}

#endif
