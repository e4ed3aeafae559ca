/* SPDX-License-Identifier: MIT */
/*
 * mpi.h: ranks of shards.h that are MPI processes. In libtamis_mpi, a library of its own: libtamis
 * does not know MPI.
 */
#ifndef TAMIS_MPI_H
#define TAMIS_MPI_H

#include <mpi.h>

#include <tamis/shards.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The transport of this process in comm, of which it takes a duplicate: collective over comm, for
 * all processes or none, with timeout_ms 0 for all of them or for none. A call that waits longer
 * than timeout_ms for the others (0: it waits for ever, and lets MPI wait as it does best) fails,
 * as do all after one that failed. MPI must be initialised; calls come from one thread at a time
 * (MPI_THREAD_SERIALIZED where it is not always the same).
 * With a time limit messages go through memory of the transport's, which grows with the largest;
 * after a call that timed out MPI may still write there, so it is then never freed.
 * Errors: TAMIS_ERROR_ARGUMENT: a NULL, a timeout, more than TAMIS_MAX_RANKS processes;
 * TAMIS_ERROR_MEMORY; TAMIS_ERROR_TRANSPORT: MPI failed; TAMIS_ERROR_RANKS: another process
 * failed, or only some have a time limit. On error *transport is zeros.
 */
tamis_status tamis_mpi_transport_create(MPI_Comm comm, int64_t timeout_ms,
                                        tamis_transport *transport, tamis_error *error);

/* Collective unless a call failed; before MPI_Finalize. A transport of zeros is fine. */
void tamis_mpi_transport_destroy(tamis_transport *transport);

#ifdef __cplusplus
}
#endif
#endif
