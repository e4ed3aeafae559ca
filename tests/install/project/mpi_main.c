/* SPDX-License-Identifier: MIT */
/* mpi_main.c: a rank of its own, from the installed libraries alone. */
#include <stdio.h>

#include <tamis/mpi.h>
#include <tamis/tamis.h>

int main(int argc, char **argv) {
    tamis_transport transport;
    tamis_error error = {0};
    long long value[8] = {42}, all[8 * TAMIS_MAX_RANKS] = {0};
    MPI_Init(&argc, &argv);
    int good = tamis_mpi_transport_create(MPI_COMM_WORLD, 0, &transport, &error) == TAMIS_OK &&
               transport.allgather(transport.context, value, all, sizeof value) == 0 &&
               all[0] == 42 && tamis_abi_version() == TAMIS_ABI_VERSION;
    tamis_mpi_transport_destroy(&transport);
    MPI_Finalize();
    if (!good) {
        printf("FAILED: %s\n", error.argument);
    }
    return !good;
}
