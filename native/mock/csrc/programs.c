/* Where a program of the node finds its node: beside itself, unless it is told.
 *
 * A driver calls nvidia-smi below the driver root with an environment of its own making. The program stands in the node's
 * usr/bin and is called by that path, which names the node as clearly as a variable does.
 */
#define _GNU_SOURCE
#include "programs.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LEVELS 3 /* usr/bin/<program> */

void program_find_node(void)
{
    char path[PATH_MAX], node[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    const char *set = getenv("GPUDRA_MOCK_NODE");
    if ((set != NULL && *set != '\0') || length < 0)
        return;
    path[length] = '\0';
    for (int level = 0; level < LEVELS; ++level) {
        char *slash = strrchr(path, '/');
        if (slash == NULL)
            return;
        *slash = '\0';
    }
    const int written = snprintf(node, sizeof(node), "%s/run/gpudra-mock/node", path);
    if (written > 0 && (size_t)written < sizeof(node) && access(node, R_OK) == 0)
        (void)setenv("GPUDRA_MOCK_NODE", node, 1); /* where memory is short the core says what it misses */
}
