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
    int rank, ranks, broken;
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

static tamis_status open_end(MPI_Comm comm, mpi_end *end, tamis_error *error) {
    if (MPI_Comm_dup(comm, &end->comm) != MPI_SUCCESS) {
        end->comm = MPI_COMM_NULL;
        return fail(error, TAMIS_ERROR_TRANSPORT, "comm", "a communicator to duplicate", 0);
    }
    if (MPI_Comm_set_errhandler(end->comm, MPI_ERRORS_RETURN) != MPI_SUCCESS ||
        MPI_Comm_rank(end->comm, &end->rank) != MPI_SUCCESS ||
        MPI_Comm_size(end->comm, &end->ranks) != MPI_SUCCESS) {
        return fail(error, TAMIS_ERROR_TRANSPORT, "comm", "a communicator that can be used", 0);
    }
    if (end->ranks > TAMIS_MAX_RANKS) { /* found by all processes alike */
        return fail(error, TAMIS_ERROR_ARGUMENT, "comm", "1 .. 64 processes", end->ranks);
    }
    return TAMIS_OK;
}

/* Nobody opens unless all do: the others would wait for who did not. A call without a time limit
 * does not meet one that has it. */
static tamis_status agree(const mpi_end *end, tamis_status own, tamis_error *error) {
    int mine[3] = {own != TAMIS_OK, end->timeout_ms == 0, end->timeout_ms != 0}, any[3];
    if (MPI_Allreduce(mine, any, 3, MPI_INT, MPI_MAX, end->comm) != MPI_SUCCESS) {
        return fail(error, TAMIS_ERROR_TRANSPORT, "comm", "a communicator that can be used", 0);
    }
    if (own == TAMIS_OK && any[0]) {
        return fail(error, TAMIS_ERROR_RANKS, "comm", "no process that failed", 1);
    }
    if (own == TAMIS_OK && any[1] && any[2]) {
        return fail(error, TAMIS_ERROR_RANKS, "timeout_ms", "0 for all processes, or for none",
                    end->timeout_ms);
    }
    return own;
}

tamis_status tamis_mpi_transport_create(MPI_Comm comm, int64_t timeout_ms,
                                        tamis_transport *transport, tamis_error *error) {
    mpi_end opened = {.timeout_ms = timeout_ms}, *end = malloc(sizeof *end);
    tamis_status own = TAMIS_OK;
    if (transport == NULL) {
        own = fail(error, TAMIS_ERROR_ARGUMENT, "transport", "a tamis_transport", 0);
    } else if (timeout_ms < 0 || timeout_ms > INT32_MAX) {
        own = fail(error, TAMIS_ERROR_ARGUMENT, "timeout_ms", "0 .. 2^31-1", timeout_ms);
    } else if (end == NULL) {
        own = fail(error, TAMIS_ERROR_MEMORY, "transport", "memory", 0);
    }
    tamis_status status = open_end(comm, &opened, own == TAMIS_OK ? error : NULL);
    if (status == TAMIS_OK) {
        status = agree(&opened, own, error);
    }
    if (transport != NULL) {
        memset(transport, 0, sizeof *transport);
    }
    if (own != TAMIS_OK || status != TAMIS_OK) {
        if (opened.comm != MPI_COMM_NULL) {
            MPI_Comm_free(&opened.comm);
        }
        free(end);
        return own != TAMIS_OK ? own : status;
    }
    *end = opened;
    transport->struct_size = (uint32_t)sizeof *transport;
    transport->rank = end->rank;
    transport->ranks = end->ranks;
    transport->context = end;
    transport->allgather = gather;
    return TAMIS_OK;
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
