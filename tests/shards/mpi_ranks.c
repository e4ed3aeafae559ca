/* SPDX-License-Identifier: MIT */
/*
 * mpi_ranks.c: one rank of a group of MPI processes. Every process makes the same model, batch and
 * expectations, takes its own part of K, and holds what it writes to one rank with all of K and to
 * the oracle. Then one rank errs, and then one does not come.
 */
#include <tamis/mpi.h>

#include "group.h"

static int rank, ranks;

static void same_as_one_rank(int32_t kind, int64_t timeout_ms) {
    static const shape two = {TAMIS_K_MXFP4_PAGE, 16, 4, 64, 16, 6, 8, 1, TAMIS_NUMERICS_EXACT};
    static const request requests[] = {{700, 3}, {131, 20}, {1, 1}};
    outcome want[LAYERS];
    tamis_transport transport;
    tamis_error error = {0};
    member m;
    seed(1 + (uint64_t)kind);
    layers *l = layers_make(two, requests, COUNT(requests));
    int64_t rows = l->batch.tokens + 2;
    alone_run(l, "auto", rows, 1, want);
    split s = {kind, ranks, 2, (uint64_t)kind};
    tamis_indexer *indexer = group_indexer(l, "auto", ranks);
    member_make(&m, l, indexer, &s, rank, 1, rows);
    succeeded(tamis_mpi_transport_create(MPI_COMM_WORLD, timeout_ms, &transport, &error), &error,
              __LINE__);
    member_connect(&m, &transport, 7);
    member_run(&m);
    succeeded(m.status, &m.error, __LINE__);
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        if (layers_selects(layer)) {
            member_same(&m, layer, &want[layer], "mpi");
        }
    }
    /* The last rank has no queries for this layer: an error for all of them. */
    member_layer(&m, rank == ranks - 1 ? LAYER_REUSE : LAYER_FULL);
    assert_int_equal(m.status, rank == ranks - 1 ? TAMIS_ERROR_GEOMETRY : TAMIS_ERROR_RANKS);
    member_layer(&m, LAYER_FULL); /* and the group goes on */
    succeeded(m.status, &m.error, __LINE__);
    member_same(&m, LAYER_FULL, &want[LAYER_FULL], "after an error");
    tamis_mpi_transport_destroy(&transport);
    tamis_indexer_destroy(indexer);
    release();
}

/* What one process lacks, all are told, and nobody waits for it. */
static void created_by_all_or_none(void) {
    tamis_transport t, *none = NULL;
    tamis_error error;
    int last = rank == ranks - 1;
    int32_t status = tamis_mpi_transport_create(MPI_COMM_WORLD, last ? -1 : 0, &t, &error);
    assert_int_equal(status, last ? TAMIS_ERROR_ARGUMENT : TAMIS_ERROR_RANKS);
    assert_null(t.context);
    status = tamis_mpi_transport_create(MPI_COMM_WORLD, 100, last ? none : &t, &error);
    assert_int_equal(status, last ? TAMIS_ERROR_ARGUMENT : TAMIS_ERROR_RANKS);
    status = tamis_mpi_transport_create(MPI_COMM_WORLD, last ? 100 : 0, &t, &error);
    assert_int_equal(status, ranks > 1 ? TAMIS_ERROR_RANKS : TAMIS_OK);
    tamis_mpi_transport_destroy(&t);
}

/* Rank 0 comes late: the others have given up, at once from then on, and what it brings is not
 * written where they had called from. */
static void one_is_late(void) {
    static _Alignas(64) uint64_t send[8], receive[8 * TAMIS_MAX_RANKS];
    tamis_transport t;
    tamis_error error = {0};
    succeeded(tamis_mpi_transport_create(MPI_COMM_WORLD, 200, &t, &error), &error, __LINE__);
    if (rank != 0) {
        assert_int_not_equal(t.allgather(t.context, send, receive, sizeof send), 0);
        assert_int_not_equal(t.allgather(t.context, send, receive, sizeof send), 0);
    }
    memset(receive, 0xEE, sizeof receive);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) { /* ends what the others have begun, so that MPI can end */
        t.allgather(t.context, send, receive, sizeof send);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; rank != 0 && i < COUNT(receive); i++) {
        assert_true(receive[i] == UINT64_C(0xEEEEEEEEEEEEEEEE));
    }
    tamis_mpi_transport_destroy(&t);
}

static void ranks_select_as_one(void **state) {
    (void)state;
    for (int32_t kind = 0; kind < SPLIT_KINDS; kind++) {
        same_as_one_rank(kind, kind % 2 ? 60000 : 0);
    }
    created_by_all_or_none();
    if (ranks > 1) {
        one_is_late();
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_select_as_one)};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (cmocka_run_group_tests(tests, NULL, NULL) != 0) {
        MPI_Abort(MPI_COMM_WORLD, 1); /* the others wait for this rank */
    }
    MPI_Finalize();
    return 0;
}
