/* SPDX-License-Identifier: MIT */
/* compose.h: a property with a file of its own: the levels are what their stages compose to. */
#ifndef TAMIS_TESTS_COMPOSE_H
#define TAMIS_TESTS_COMPOSE_H

#include <tamis/tamis.h>

void levels_are_their_stages(const tamis_backend *backend);

#endif
