/* Reads a node over and over while another thread watches: for the sanitizers. Arguments: library, rounds, addresses. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml_door.h"

static door_progress progress;
static atomic_int stop;

static void *watch(void *unused)
{
    long seen = 0;
    (void)unused;
    while (!atomic_load(&stop)) {
        door_look_result look;
        door_look(&progress, &look);
        seen += look.call != NULL && strlen(look.call) > 0;
    }
    return (void *)seen;
}

int main(int argc, char **argv)
{
    char error[512];
    door *door = NULL;
    door_node node;
    pthread_t watcher;
    unsigned int count = (unsigned int)(argc - 3);
    memset(&node, 0, sizeof(node));
    if (door_open(&door, "/nonexistent/library.so", &progress, error, sizeof(error)) != 12 || error[0] == '\0') {
        return 2;
    }
    if (door_open(&door, argv[1], &progress, error, sizeof(error)) != 0) {
        return 3;
    }
    pthread_create(&watcher, NULL, watch, NULL);
    for (int round = 0; round < atoi(argv[2]); round++) {
        unsigned int found = 0;
        door_gpu *gpus = calloc(count, sizeof(*gpus));
        door_read_node(door, &node);
        door_count(door, &found);
        for (unsigned int i = 0; i < count; i++) {
            gpus[i].index = i;
            snprintf(gpus[i].address, sizeof(gpus[i].address), "%s", round % 2 ? argv[3 + i] : "");
        }
        door_read(door, gpus, count);
        memset(gpus, 0, count * sizeof(*gpus));
        door_locate(door, gpus, count);
        free(gpus);
    }
    atomic_store(&stop, 1);
    pthread_join(watcher, NULL);
    door_close(door);
    door_close(NULL);
    puts("done");
    return 0;
}
