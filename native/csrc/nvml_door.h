/*
 * The door to NVML: one library, opened by its path, and one call that reads a whole node.
 *
 * Nothing is linked and nothing is global: every library that is open has a context of its own, so a process may hold
 * two at once. A symbol that the library lacks reads as code 13 (NVML_ERROR_FUNCTION_NOT_FOUND). Codes are those of
 * nvmlReturn_t. A context belongs to one thread at a time; door_look may be called from any thread.
 *
 * What stands between the two cdef marks is also what cffi parses: plain C, no preprocessor but integer constants.
 */
#ifndef GPUDRA_NVML_DOOR_H
#define GPUDRA_NVML_DOOR_H

#include <stdatomic.h>
#include <stddef.h>

/* What a watcher sees of the call under way. Lives as long as its owner wants, longer than the context. */
typedef struct {
    atomic_uint sequence; /* odd while the other two change; read before and after */
    _Atomic(const char *) call;
    atomic_int gpu;
} door_progress;

/* cdef begin */
#define DOOR_TEXT 256
#define DOOR_ADDRESS 32
#define DOOR_LINKS 36
#define DOOR_FABRIC_UUID 16

typedef struct door door;

typedef struct {
    unsigned int sequence; /* differs for any two calls */
    const char *call;      /* NULL between calls */
    int gpu;               /* index into the array given to door_read; -1: about no GPU that is known */
} door_look_result;

/* Each name in lower case without the prefix is a field of GpuSnapshot ("pci" apart), in no order that matters. */
enum door_field {
    DOOR_HANDLE,
    DOOR_PCI,
    DOOR_INDEX,
    DOOR_UUID,
    DOOR_NAME,
    DOOR_BRAND,
    DOOR_ARCHITECTURE,
    DOOR_CUDA_COMPUTE_CAPABILITY,
    DOOR_SERIAL,
    DOOR_BOARD_PART_NUMBER,
    DOOR_VBIOS_VERSION,
    DOOR_MINOR_NUMBER,
    DOOR_MODULE_ID,
    DOOR_MEMORY_TOTAL,
    DOOR_MEMORY_RESERVED,
    DOOR_BAR1_TOTAL,
    DOOR_ADDRESSING_MODE,
    DOOR_ECC_MODE,
    DOOR_MIG_MODE,
    DOOR_COMPUTE_MODE,
    DOOR_PERSISTENCE_MODE,
    DOOR_VIRTUALIZATION_MODE,
    DOOR_PCIE_LINK_GENERATION,
    DOOR_PCIE_LINK_WIDTH,
    DOOR_MEMORY_NUMA_NODE,
    DOOR_NVLINKS,
    DOOR_FABRIC,
    DOOR_FIELDS
};

typedef struct {
    char bus_id[DOOR_ADDRESS];
    unsigned int domain;
    unsigned int bus;
    unsigned int device;
    unsigned int device_id;
    unsigned int subsystem_id;
} door_pci;

typedef struct {
    int state_code; /* NVML_ERROR_NOT_SUPPORTED: the GPU has no such link */
    int version_code;
    int remote_pci_code;
    int remote_type_code;
    int active;
    unsigned int version;
    int remote_type;
    door_pci remote;
} door_link;

typedef struct {
    char address[DOOR_ADDRESS]; /* in: what to look the GPU up by; empty: by index, and then filled from its PCI info */
    unsigned int index;
    int codes[DOOR_FIELDS];
    door_pci pci;
    char uuid[DOOR_TEXT];
    char name[DOOR_TEXT];
    char serial[DOOR_TEXT];
    char board_part_number[DOOR_TEXT];
    char vbios_version[DOOR_TEXT];
    int brand;
    unsigned int architecture;
    int cuda_major;
    int cuda_minor;
    unsigned int minor_number;
    unsigned int module_id;
    unsigned long long memory_total;
    unsigned long long memory_reserved;
    unsigned long long bar1_total;
    unsigned int addressing_mode;
    int ecc_current;
    int ecc_pending;
    unsigned int mig_current;
    unsigned int mig_pending;
    int compute_mode;
    int persistence_mode;
    int virtualization_mode;
    unsigned int pcie_link_generation;
    unsigned int pcie_link_width;
    unsigned int memory_numa_node;
    unsigned int link_count; /* entries of links that were asked */
    door_link links[DOOR_LINKS];
    unsigned char fabric_uuid[DOOR_FABRIC_UUID];
    int fabric_status;
    unsigned int fabric_clique;
    unsigned int fabric_state;
    unsigned int fabric_health_mask;
} door_gpu;

typedef struct {
    int driver_version_code;
    int nvml_version_code;
    int cuda_driver_version_code;
    char driver_version[DOOR_TEXT];
    char nvml_version[DOOR_TEXT];
    int cuda_driver_version;
} door_node;

/* Loads the library (RTLD_NOW | RTLD_LOCAL) and initialises it. On failure *out is NULL; `error` holds the loader's
   words where it was the loader that failed and is empty otherwise. */
int door_open(door **out, const char *path, door_progress *progress, char *error, size_t error_size);
/* Shuts NVML down and unloads the library. NULL is allowed. */
void door_close(door *door);
/* The function that was called last, or looked for in vain: the one to name when a call of a single GPU fails. */
const char *door_last(const door *door);
int door_has_symbol(const door *door, const char *name);
int door_count(door *door, unsigned int *count);
void door_read_node(door *door, door_node *node);
/* Reads `count` GPUs whose `address` and `index` are set and all else is zero; codes and values land in each. */
void door_read(door *door, door_gpu *gpus, unsigned int count);
/* As door_read, but no further than the PCI address. */
void door_locate(door *door, door_gpu *gpus, unsigned int count);
/* The call under way, from any thread. */
void door_look(door_progress *progress, door_look_result *result);
/* cdef end */

#endif
