#!/bin/sh
# SPDX-License-Identifier: MIT
# mpi.sh RANKS [PROGRAM]: the program as that many MPI processes on this machine.
set -eu
ranks=$1 program=${2:-}
if [ -z "$program" ]; then
    echo "SKIPPED: built without MPI (libopenmpi-dev): ranks as MPI processes are not tested"
    exit 77
fi
if ! command -v mpirun >/dev/null; then
    echo "SKIPPED: no mpirun (openmpi-bin): ranks as MPI processes are not tested"
    exit 77
fi
# MPI itself keeps memory to the end.
ASAN_OPTIONS=detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}
# As root in a container; more ranks than processors; shared memory without ptrace.
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_rmaps_base_oversubscribe=1
export ASAN_OPTIONS OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
export OMPI_MCA_btl_vader_single_copy_mechanism OMPI_MCA_rmaps_base_oversubscribe
exec mpirun --oversubscribe -n "$ranks" "$program"
