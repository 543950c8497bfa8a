/* What the parts of the mock nvidia-cuda-mps-control share. */
#ifndef GPUDRA_MOCK_MPS_H
#define GPUDRA_MOCK_MPS_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#define MPS_MAX_SERVERS 16
#define MPS_MAX_LIMITS 64
#define MPS_WORD 96
#define MPS_PATH 4096

/* How much device memory a client may pin on a device; the device is an ordinal or a UUID, as it was given. */
struct mps_limit {
    char device[MPS_WORD];
    char value[MPS_WORD];
};

struct mps_limits {
    struct mps_limit all[MPS_MAX_LIMITS];
    unsigned int count;
};

struct mps_server {
    pid_t pid;
    unsigned int uid;
    double percentage;
    struct mps_limits limits;
};

struct mps_daemon {
    char pipe_folder[MPS_PATH], log_folder[MPS_PATH];
    double percentage; /* what a server starts with, like the limits and the priority */
    struct mps_limits limits;
    unsigned int priority;
    bool multiuser, quitting, foreground;
    double patience_s; /* how long quit waits for servers before it kills them; negative: for ever */
    struct mps_server servers[MPS_MAX_SERVERS]; /* pid 0: none */
    int lock, sockets[2];
    FILE *log;
};

/* mps_daemon.c */
int mps_serve(struct mps_daemon *daemon, bool background);
void mps_log(struct mps_daemon *daemon, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* mps_commands.c: what a line from a front end does; the answer goes to a stream */
void mps_command(struct mps_daemon *daemon, char *line, FILE *answer);

/* mps_server.c */
int mps_run_server(const struct mps_daemon *daemon);
pid_t mps_start_server(struct mps_daemon *daemon, unsigned int uid, FILE *answer); /* 0: the answer says why not */
void mps_reap(struct mps_daemon *daemon);
void mps_stop_servers(struct mps_daemon *daemon);
bool mps_knows_device(const char *device); /* an ordinal or UUID among those of CUDA_VISIBLE_DEVICES */

/* mps_control.c */
bool mps_address(const struct mps_daemon *daemon, const char *name, void *address); /* a struct sockaddr_un */

#endif
