/* SPDX-License-Identifier: MIT */
/* main.c: a host of the installed library: the version, and the best 3 of 5 scores. */
#include <stdio.h>
#include <string.h>

#include <tamis/tamis.h>

int main(int argc, char **argv) {
    const float scores[] = {1, 5, -2, 9, 3};
    int32_t best[3], count = 0;
    tamis_backend *backend;
    tamis_topk_args a;
    tamis_error error;
    if (argc != 2 || strcmp(argv[1], tamis_version()) != 0 ||
        tamis_abi_version() != TAMIS_ABI_VERSION) {
        fprintf(stderr, "the library is %s, ABI %d\n", tamis_version(), tamis_abi_version());
        return 1;
    }
    if (tamis_backend_create("auto", &backend, &error) != TAMIS_OK) {
        return 1;
    }
    tamis_topk_args_default(&a);
    a.logits_type = TAMIS_F32;
    a.rows.count = 1;
    a.logits = scores;
    a.width = a.logits_stride = 5;
    a.selection.topk = a.selection.positions_stride = 3;
    a.selection.positions = best;
    a.selection.counts = &count;
    tamis_status status = tamis_topk(backend, &a, 0, 1, &error);
    tamis_backend_destroy(backend);
    printf("tamis %s: %d %d %d\n", tamis_version(), best[0], best[1], best[2]);
    return !(status == TAMIS_OK && count == 3 && best[0] == 1 && best[1] == 3 && best[2] == 4);
}
