/* SPDX-License-Identifier: MIT */
/*
 * report.c: hands over to the Python package, which measures a trace and makes the page. The
 * program below stands in for `python3 -m tamis.report` so that a package that is not there is told
 * in one line; the current folder is no place to import from.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "command.h"

static const char program[] =
    "import sys\n"
    "sys.path = [folder for folder in sys.path if folder]\n"
    "try:\n"
    "    from tamis.report import main\n"
    "except ImportError as error:\n"
    "    print('tamis report: required the Python package tamis (pip install bindings/python of '\n"
    "          'the source), found:', error, file=sys.stderr)\n"
    "    sys.exit(2)\n"
    "sys.exit(main(sys.argv[1:]))\n";

enum { MOST_ARGUMENTS = 64 };

int command_report(int argc, char **argv) {
    const char *args[MOST_ARGUMENTS + 4] = {"python3", "-c", program};
    if (argc > MOST_ARGUMENTS)
        return fail("report: required at most %d arguments, found %d", MOST_ARGUMENTS - 1,
                    argc - 1);
    for (int i = 1; i < argc; i++)
        args[2 + i] = argv[i];
    execvp(args[0], (char *const *)(uintptr_t)args);
    return fail("report: required python3 with the package tamis, found: %s", strerror(errno));
}
