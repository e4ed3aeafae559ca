/* SPDX-License-Identifier: MIT */
/* properties.h: the properties of properties.inc as a list. */
#ifndef TAMIS_TESTS_PROPERTIES_H
#define TAMIS_TESTS_PROPERTIES_H

#include "suite.h"

extern const suite_test indexer_properties[];
extern const int indexer_property_count;

#endif
