/* SPDX-License-Identifier: MIT */
/*
 * replay_graph.c: CUDA graphs captured and launched. tamis queues work and knows nothing of graphs,
 * so the few driver calls that they need are found here, in the driver that tamis has opened.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "replay_cuda.h"

struct replay_graphs {
    void *driver;
    int (*begin)(void *stream, int mode);
    int (*end)(void *stream, void **graph);
    int (*instantiate)(void **exec, void *graph, unsigned long long flags);
    int (*launch)(void *exec, void *stream);
    int (*destroy)(void *graph);
    int (*destroy_exec)(void *exec);
    void *exec[REPLAY_GRAPHS];
};

static int find(replay_graphs *g, const char *symbol, void *function) {
    void *found = dlsym(g->driver, symbol);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

replay_graphs *replay_graphs_open(void) {
    replay_graphs *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    g->driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (g->driver && find(g, "cuStreamBeginCapture_v2", &g->begin) &&
        find(g, "cuStreamEndCapture", &g->end) &&
        find(g, "cuGraphInstantiateWithFlags", &g->instantiate) &&
        find(g, "cuGraphLaunch", &g->launch) && find(g, "cuGraphDestroy", &g->destroy) &&
        find(g, "cuGraphExecDestroy", &g->destroy_exec))
        return g;
    replay_graphs_close(g);
    return NULL;
}

void replay_graphs_close(replay_graphs *g) {
    if (!g)
        return;
    for (int i = 0; i < REPLAY_GRAPHS; i++)
        if (g->exec[i])
            g->destroy_exec(g->exec[i]);
    if (g->driver)
        dlclose(g->driver);
    free(g);
}

int replay_graphs_has(const replay_graphs *g, int key) {
    return g->exec[key] != NULL;
}

/* Global mode: a call that waits or allocates, in any thread, breaks the capture. */
int replay_graphs_begin(replay_graphs *g, void *stream) {
    enum { GLOBAL = 0 };
    return g->begin(stream, GLOBAL);
}

int replay_graphs_end(replay_graphs *g, int key, void *stream) {
    void *graph = NULL;
    int result = g->end(stream, &graph);
    if (result == 0)
        result = g->instantiate(&g->exec[key], graph, 0);
    if (graph)
        g->destroy(graph);
    return result;
}

int replay_graphs_launch(replay_graphs *g, int key, void *stream) {
    return g->launch(g->exec[key], stream);
}
