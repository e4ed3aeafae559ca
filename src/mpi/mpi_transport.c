/* SPDX-License-Identifier: MIT */
/*
 * mpi_transport.c: the transport between MPI processes, on the public interface alone.
 *
 * Errors are returned, not fatal: the default would end the processes. Messages travel as words of
 * 8 bytes, so that counts fit an int for all that memory holds. A call with a time limit may end
 * before MPI has written what it receives, so that MPI then gets memory of the transport's alone.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tamis/mpi.h>

typedef struct mpi_end {
    MPI_Comm comm;
    int64_t timeout_ms;
    int ranks, broken;
    uint8_t *memory; /* with a time limit: a message, then those of all ranks; grows */
    int64_t room;
} mpi_end;

static tamis_status fail(tamis_error *error, tamis_status status, const char *argument,
                         const char *required, int64_t found) {
    if (error) {
        error->status = status;
        snprintf(error->argument, sizeof error->argument, "%s", argument);
        snprintf(error->required, sizeof error->required, "%s", required);
        snprintf(error->found, sizeof error->found, "%lld", (long long)found);
    }
    return status;
}

static int64_t now_ms(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (int64_t)at.tv_sec * 1000 + at.tv_nsec / 1000000;
}

/* Returns whether the request ended well in time. */
static int wait_for(MPI_Request *request, int64_t timeout_ms) {
    int64_t deadline = now_ms() + timeout_ms;
    for (;;) {
        int done = 0;
        if (MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
            return 0;
        }
        if (done || now_ms() > deadline) {
            return done;
        }
        sched_yield();
    }
}

static int make_room(mpi_end *end, int64_t bytes) {
    if (bytes > end->room) {
        free(end->memory);
        end->memory = malloc((size_t)bytes);
        end->room = end->memory ? bytes : 0;
    }
    return end->memory != NULL;
}

static int gather_in_time(mpi_end *end, const void *send, void *receive, int64_t bytes) {
    int words = (int)(bytes / 8);
    MPI_Request request;
    if (!make_room(end, bytes * (1 + end->ranks))) {
        return 0;
    }
    uint8_t *all = end->memory + bytes;
    memcpy(end->memory, send, (size_t)bytes);
    if (MPI_Iallgather(end->memory, words, MPI_UINT64_T, all, words, MPI_UINT64_T, end->comm,
                       &request) != MPI_SUCCESS ||
        !wait_for(&request, end->timeout_ms)) {
        return 0;
    }
    memcpy(receive, all, (size_t)(bytes * end->ranks));
    return 1;
}

static int32_t gather(void *context, const void *send, void *receive, int64_t bytes) {
    mpi_end *end = context;
    int words = (int)(bytes / 8), result;
    if (end->broken) {
        return -1;
    }
    if (end->timeout_ms == 0) {
        result = MPI_Allgather(send, words, MPI_UINT64_T, receive, words, MPI_UINT64_T, end->comm);
        end->broken = result != MPI_SUCCESS;
        return end->broken ? result : 0;
    }
    end->broken = !gather_in_time(end, send, receive, bytes);
    return end->broken ? -1 : 0;
}

static tamis_status open_end(MPI_Comm comm, mpi_end *end, tamis_transport *transport,
                             tamis_error *error) {
    int rank, ranks;
    if (MPI_Comm_dup(comm, &end->comm) != MPI_SUCCESS ||
        MPI_Comm_set_errhandler(end->comm, MPI_ERRORS_RETURN) != MPI_SUCCESS ||
        MPI_Comm_rank(end->comm, &rank) != MPI_SUCCESS ||
        MPI_Comm_size(end->comm, &ranks) != MPI_SUCCESS) {
        return fail(error, TAMIS_ERROR_TRANSPORT, "comm", "a communicator that can be used", 0);
    }
    if (ranks > TAMIS_MAX_RANKS) { /* found by all processes alike */
        MPI_Comm_free(&end->comm);
        return fail(error, TAMIS_ERROR_ARGUMENT, "comm", "1 .. 64 processes", ranks);
    }
    end->ranks = ranks;
    transport->struct_size = (uint32_t)sizeof *transport;
    transport->rank = rank;
    transport->ranks = ranks;
    transport->context = end;
    transport->allgather = gather;
    return TAMIS_OK;
}

tamis_status tamis_mpi_transport_create(MPI_Comm comm, int64_t timeout_ms,
                                        tamis_transport *transport, tamis_error *error) {
    if (transport == NULL) {
        return fail(error, TAMIS_ERROR_ARGUMENT, "transport", "a tamis_transport", 0);
    }
    memset(transport, 0, sizeof *transport);
    if (timeout_ms < 0 || timeout_ms > INT32_MAX) {
        return fail(error, TAMIS_ERROR_ARGUMENT, "timeout_ms", "0 .. 2^31-1", timeout_ms);
    }
    mpi_end *end = calloc(1, sizeof *end);
    if (end == NULL) {
        return fail(error, TAMIS_ERROR_MEMORY, "transport", "memory", 0);
    }
    end->timeout_ms = timeout_ms;
    tamis_status status = open_end(comm, end, transport, error);
    if (status != TAMIS_OK) {
        free(end);
    }
    return status;
}

void tamis_mpi_transport_destroy(tamis_transport *transport) {
    mpi_end *end = transport ? transport->context : NULL;
    if (end != NULL) {
        if (!end->broken) { /* else MPI may still use both */
            MPI_Comm_free(&end->comm);
            free(end->memory);
        }
        free(end);
        memset(transport, 0, sizeof *transport);
    }
}
