/* What the parts of the mock share: the mapped node, the prologue of every call, and small helpers for getters. */
#ifndef GPUDRA_MOCK_H
#define GPUDRA_MOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include "functions.h"
#include "node_layout.h"

#define MOCK_EXPORT __attribute__((visibility("default")))
#define MOCK_WEAK __attribute__((weak, noinline))

/* What a call is about: its first parameter. A device is a GPU; only some calls take the handle of a MIG device too. */
enum mock_kind {
    MOCK_ANY_TIME,
    MOCK_INITIALISED,
    MOCK_DEVICE,
    MOCK_ANY_DEVICE,
    MOCK_MIG_DEVICE,
    MOCK_GPU_INSTANCE,
    MOCK_COMPUTE_INSTANCE
};

/* state.c */
nvmlReturn_t mock_enter(const char *function, enum mock_kind kind, nvmlDevice_t device);
nvmlReturn_t mock_reach(const char *function, nvmlDevice_t found); /* a lookup that the prologue let pass found this GPU */
nvmlReturn_t mock_open(const char *function);
nvmlReturn_t mock_close(void);
const struct mock_node *mock_node(void);
struct mock_node *mock_writable_node(void);               /* NULL where the node file can only be read */
const char *mock_path(void);                              /* of the node file */
const char *mock_root(void);                              /* of the node's root; empty where there is none */
unsigned int mock_count(void);                            /* visible GPUs */
nvmlDevice_t mock_handle(unsigned int index);             /* NULL beyond the last visible one */
nvmlDevice_t mock_device_at(unsigned int position);       /* the GPU at a position of the node file */
const struct mock_gpu *mock_gpu(nvmlDevice_t device);     /* also of a MIG device or instance; NULL for no handle */
bool mock_index(nvmlDevice_t device, unsigned int *index);
bool mock_position(nvmlDevice_t device, unsigned int *position);
int mock_pair(size_t matrix_offset, nvmlDevice_t a, nvmlDevice_t b);
nvmlReturn_t mock_presence(nvmlDevice_t device);          /* GPU_IS_LOST for one that is gone; waits for a silent one */
bool mock_gone(unsigned int position);                    /* the same without waiting */
nvmlReturn_t mock_session(void);                          /* whether the session still has a driver under it */
nvmlReturn_t mock_set(const int64_t *field, int64_t value); /* a field of the node; NO_PERMISSION where it is read-only */

/* rules.c */
nvmlReturn_t mock_rule(const char *function, nvmlDevice_t device, bool for_one_gpu);
bool mock_refuses(const char *function, nvmlDevice_t device, unsigned int version); /* a struct of this version */
void mock_free_event_sets(void);                            /* those that nobody freed */
const char *mock_node_path(void);                           /* of the open node file */
void mock_pause(int64_t milliseconds);

/* lock.c: one writer at a time, over all processes */
nvmlReturn_t mock_lock(int *lock);
void mock_unlock(int lock);

/* mig.c */
struct mock_instance {
    unsigned int position, gi, ci; /* ci is 0 where the handle is a GPU instance's */
    const struct mock_gpu *gpu;
    const struct mock_gi *gi_record;
    const struct mock_ci *ci_record; /* NULL where the handle is a GPU instance's */
    const struct mock_gi_profile *profile;
};
/* What a handle of an instance or MIG device means; false for one that is none, or whose instance is gone. */
bool mock_instance(const void *handle, enum mock_kind kind, struct mock_instance *out);
bool mock_is_instance_handle(const void *handle, unsigned int *position);
void *mock_instance_handle(enum mock_kind kind, unsigned int position, unsigned int gi, unsigned int ci);
bool mock_in_use(const struct mock_gpu *gpu, int64_t gi, int64_t ci); /* -1: any */
bool mock_find_mig(const struct mock_gpu *gpu, unsigned int index, unsigned int *gi, unsigned int *ci);
#define MOCK_UUID_ROOM 48
void mock_mig_uuid(const struct mock_gpu *gpu, unsigned int gi, unsigned int ci, char out[MOCK_UUID_ROOM]);

/* mig_profiles.c */
const struct mock_gi_profile *mock_gi_profile(const struct mock_gpu *gpu, unsigned int id, unsigned int *index);
bool mock_fits(const struct mock_gpu *gpu, const struct mock_gi_profile *profile, int64_t start);
bool mock_has_room(const struct mock_gpu *gpu, const struct mock_gi_profile *profile, int64_t more);
unsigned int mock_ci_starts(unsigned int slices, unsigned int wanted); /* a bit for every legal start */
unsigned int mock_ci_slices(unsigned int profile);                    /* 0 for a profile that no board has */
unsigned int mock_ci_multiprocessors(const struct mock_gpu *gpu, const struct mock_gi_profile *of, unsigned int slices);

/* capabilities.c: makes /proc/driver/nvidia/capabilities and /dev/nvidia-caps say what instances a GPU has */
void mock_show_capabilities(unsigned int position);
bool mock_may_open(const struct mock_gpu *gpu, unsigned int gi, unsigned int ci);

/* Copies a text the way NVML does: INSUFFICIENT_SIZE when the buffer cannot hold it and its NUL. */
nvmlReturn_t mock_text(const struct mock_text *text, char *out, unsigned int length);

/* identity.c */
void mock_pci_info(nvmlPciInfo_t *pci, int64_t domain, int64_t bus, int64_t device, int64_t id, int64_t subsystem);

/* A getter of one number: *out = number, NOT_SUPPORTED for -1. */
#define MOCK_GIVE(out, number)                                   \
    do {                                                         \
        const int64_t mock_value = (number);                     \
        if ((out) == NULL)                                       \
            return NVML_ERROR_INVALID_ARGUMENT;                  \
        if (mock_value < 0)                                      \
            return NVML_ERROR_NOT_SUPPORTED;                     \
        *(out) = (__typeof__(*(out)))mock_value;                 \
        return NVML_SUCCESS;                                     \
    } while (0)

/* "Requires privileged user" in nvml.h: root, or the mig/config capability. Here: who may write the node file. */
#define MOCK_PRIVILEGED()                                        \
    do {                                                         \
        if (mock_writable_node() == NULL)                        \
            return NVML_ERROR_NO_PERMISSION;                     \
    } while (0)

#define MOCK_VERSION_OF(type, number) ((unsigned int)(sizeof(type) | ((number) << 24U)))

#endif
