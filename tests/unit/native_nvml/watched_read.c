/* Reads a node over and over while another thread watches: for the sanitizers. Arguments: library, rounds, addresses. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml_door.h"
#include "nvml_events.h"
#include "nvml_health.h"
#include "nvml_mig.h"
#include "nvml_topology.h"

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

/* Every call about a single GPU, whatever it answers. */
static void change(door *door, const door_gpu *gpus)
{
    static door_profiles profiles;
    static door_mig mig;
    door_placement place = {1, 1};
    door_instance instance;
    door_compute_instance compute;
    int activation;
    unsigned int number, pending;
    memset(&profiles, 0, sizeof(profiles));
    memset(&mig, 0, sizeof(mig));
    memset(&instance, 0, sizeof(instance));
    memset(&compute, 0, sizeof(compute));
    door_read_profiles(door, gpus, 0, &profiles);
    door_read_mig(door, gpus, 0, &profiles, &mig);
    door_remaining_capacity(door, gpus, 0, 19, &number);
    door_set_mig_mode(door, gpus, 0, 1, &activation);
    door_get_mig_mode(door, gpus, 0, &number, &pending);
    if (door_create_instance(door, gpus, 0, 19, &place, &instance) == 0) {
        memset(&profiles, 0, sizeof(profiles));
        door_compute_profiles(door, gpus, 0, instance.id, &profiles);
        if (door_create_compute_instance(door, gpus, 0, instance.id, 0, &compute) == 0) {
            door_destroy_compute_instance(door, gpus, 0, instance.id, compute.id);
        }
        door_destroy_instance(door, gpus, 0, instance.id);
    }
    door_set_compute_mode(door, gpus, 0, 0);
    door_set_persistence_mode(door, gpus, 0, 1);
}

static void look_after(door *door, const door_gpu *gpus, unsigned int count)
{
    static door_stop stop;
    door_health *health = calloc(count, sizeof(*health));
    door_affinity *affinities = calloc(count, sizeof(*affinities));
    door_pair *pairs = calloc(count * (count - 1) / 2, sizeof(*pairs));
    door_process processes[8];
    door_event event;
    unsigned long long kinds, device;
    memset(&event, 0, sizeof(event));
    door_read_health(door, gpus, count, health);
    door_read_topology(door, gpus, count, affinities, pairs);
    for (int kind = 0; kind < 3; kind++) {
        unsigned int room = 8;
        door_processes(door, gpus, 0, kind, processes, &room);
    }
    if (door_events_open(door) == 0) {
        for (unsigned int i = 0; i < count; i++) {
            door_events_register(door, gpus, (int)i, 8, &kinds, &device);
        }
        door_events_wait(door, 2, 1, &stop, &event);
        door_stop_now(&stop);
        door_events_wait(door, 60000, 250, &stop, &event);
    }
    free(health);
    free(affinities);
    free(pairs);
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
        if (round % 2) {
            change(door, gpus + 1);
            look_after(door, gpus, count);
        }
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
