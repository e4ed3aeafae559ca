/* SPDX-License-Identifier: MIT */
/* main.c: runs one property on every tier. */
#include "properties.h"

int main(int argc, char **argv) {
    return suite_main(argc, argv, indexer_properties, indexer_property_count);
}
