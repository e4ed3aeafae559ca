/* SPDX-License-Identifier: MIT */
/*
 * tile_args.h: a source's rows in tiles whose block maxima fit one buffer, cut on the device, which
 * alone knows lengths. Host and device both read it.
 *
 * As many tiles are queued as the longest rows would need; where rows are short the first few hold
 * all of them and the others none. Rows lie in the buffer one after another, each from a multiple
 * of TAMIS_MAXIMA_UNIT on, so that a long row takes room from none but itself. Runs of
 * TAMIS_TILE_RUN rows stay together.
 */
#ifndef TAMIS_CUDA_TILE_ARGS_H
#define TAMIS_CUDA_TILE_ARGS_H

#include <tamis/tamis.h>

#include "cache/address.h"

enum {
    TAMIS_MAXIMA_UNIT = 64, /* bytes */
    TAMIS_TILE_RUN = 8,     /* rows, from the first row on: what source_runs.cuh scores together */
    TAMIS_TILE_ROWS = 8192  /* that one call cuts at most */
};

/* Which rows of a call a kernel is to do. */
typedef struct tamis_row_tile {
    const int32_t
        *starts;        /* [tiles + 1] rows; NULL: all, and maxima lie in rows of equal strides */
    const uint32_t *at; /* [rows] units of the buffer before a row's */
    int64_t index;
} tamis_row_tile;

/*
 * What the gates of a step's consumers found of their rows' two routes, on the device. A later
 * layer only ever raises it, so that it holds for each of them and nobody but the step empties it.
 */
typedef struct tamis_routes {
    uint32_t longest; /* positions that a row of the dense route sees at most */
    uint32_t listed;  /* not 0: some rows take the other one */
    uint32_t decoded; /* positions at the end of their room that are decoded K, at most */
    uint32_t reserved;
} tamis_routes;

/* Which rows of a call a kernel is to do that writes or reads scores: lines as short as the longest
 * of them allows, so that few tiles of all that are queued hold a short step. */
typedef struct tamis_score_tile {
    const tamis_routes *routes; /* NULL: all, in lines as the call has them */
    uint32_t both; /* not 0: rows that see nothing are the other route's where any takes it */
    uint32_t index;
    uint32_t stride; /* floats of a line at most, a multiple of 32 */
    uint32_t room;   /* floats of all lines */
    uint32_t spare;  /* floats behind them that are theirs but for decoded K, which ends there */
} tamis_score_tile;

typedef struct tamis_tile_args {
    const int32_t *ks, *ke; /* [rows], ks may be NULL */
    int32_t *starts;        /* out [tiles + 1] */
    uint32_t *at;           /* out [rows] */
    int64_t rows;
    int64_t limit;  /* positions of a row at most */
    uint32_t units; /* of the buffer: 2 * TAMIS_TILE_RUN rows of `limit` at least */
    uint32_t tiles; /* tamis_tiles_of all rows at `limit` */
    int32_t block_size, reserved;
} tamis_tile_args;

/* Units of a row's block maxima, and of one block more. length: below 2^31. */
TAMIS_INLINE int64_t tamis_maxima_units(int64_t length, int32_t block_size) {
    uint32_t blocks = ((uint32_t)length + (uint32_t)block_size - 1) / (uint32_t)block_size;
    return length > 0 ? blocks / (TAMIS_MAXIMA_UNIT / 4) + 1 : 0;
}

/* Tiles for rows of `total` units, the longest of `longest`. */
TAMIS_INLINE int64_t tamis_tiles_of(int64_t total, int64_t longest, int64_t units) {
    int64_t room = units - TAMIS_TILE_RUN * longest;
    return total > 0 ? (total + room - 1) / room : 1;
}

/* The tile of a run with `before` units ahead of it. A tile's runs begin inside total / tiles
 * units, so that the last of them ends inside the buffer. */
TAMIS_INLINE uint32_t tamis_tile_of(uint32_t before, uint32_t total, uint32_t tiles) {
    uint32_t each = total / tiles + (total % tiles > 0);
    uint32_t tile = each > 0 ? before / each : 0;
    return tile < tiles ? tile : tiles - 1; /* rows of no units behind the last */
}

/* Floats of a line of scores for rows of `longest` positions. */
TAMIS_INLINE uint32_t tamis_score_stride(uint32_t longest, uint32_t most) {
    uint32_t stride = longest > 32 ? (longest + 31) / 32 * 32 : 32;
    return stride < most ? stride : most;
}

/* Rows of each of as few tiles of at most `most` as can be, of one size but for the last: whole
 * runs of them where any fits. */
TAMIS_INLINE uint32_t tamis_tile_rows(uint32_t rows, uint32_t most) {
    uint32_t tiles, each;
    if (most >= rows) {
        return rows;
    }
    if (most <= TAMIS_TILE_RUN) {
        return most > 0 ? most : 1;
    }
    most = most / TAMIS_TILE_RUN * TAMIS_TILE_RUN;
    tiles = (rows + most - 1) / most;
    each = (rows + tiles - 1) / tiles;
    return (each + TAMIS_TILE_RUN - 1) / TAMIS_TILE_RUN * TAMIS_TILE_RUN;
}

/* Floats that lines have where `decoded` positions of K, of 32 each, end behind them. */
TAMIS_INLINE uint32_t tamis_score_room(const tamis_score_tile *tile, uint32_t decoded) {
    uint32_t left = tile->spare / 32;
    return tile->room + (decoded < left ? tile->spare - 32 * decoded : 0);
}

/* The same of rows whose lines of scores share `room` floats. */
TAMIS_INLINE uint32_t tamis_score_rows(uint32_t rows, uint32_t stride, uint32_t room) {
    return tamis_tile_rows(rows, room / stride);
}

#endif
