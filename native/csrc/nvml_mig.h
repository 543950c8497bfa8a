/*
 * MIG through the door: profiles and placements, what exists now, and the calls that change it. A GPU is named by its
 * place in an array of door_gpu whose address (or else index) is set; nothing here outlives the call, no handle either.
 */
#ifndef GPUDRA_NVML_MIG_H
#define GPUDRA_NVML_MIG_H

#include "nvml_door.h"

/* cdef begin */
#define DOOR_PROFILES 32
#define DOOR_PLACEMENTS 32
#define DOOR_INSTANCES 32
#define DOOR_COMPUTE_INSTANCES 64
#define DOOR_MIG_DEVICES 64

typedef struct {
    unsigned int start;
    unsigned int size;
} door_placement;

typedef struct {
    unsigned int index; /* NVML's number of the profile; `id` is what create and list take */
    unsigned int id;
    unsigned int struct_version; /* 3: capabilities are known; 1: the name is not */
    unsigned int p2p;
    unsigned int capabilities;
    unsigned int slice_count;
    unsigned int instance_count;
    unsigned int multiprocessor_count;
    unsigned int copy_engine_count;
    unsigned int decoder_count;
    unsigned int encoder_count;
    unsigned int jpeg_count;
    unsigned int ofa_count;
    unsigned long long memory_mib;
    char name[DOOR_TEXT];
    int placements_code;
    unsigned int placement_count;
    door_placement placements[DOOR_PLACEMENTS];
} door_profile;

typedef struct {
    int code; /* of the list as a whole */
    unsigned int count;
    door_profile profiles[DOOR_PROFILES];
} door_profiles;

typedef struct {
    unsigned int id;
    unsigned int profile_id;
    door_placement placement;
} door_instance;

typedef struct {
    unsigned int gpu_instance;
    unsigned int id;
    unsigned int profile_id;
    door_placement placement;
    int uuid_code;
    char uuid[DOOR_TEXT];
} door_compute_instance;

typedef struct {
    unsigned int index;
    int uuid_code;
    int gpu_instance_code;
    int compute_instance_code;
    int attributes_code;
    char uuid[DOOR_TEXT];
    unsigned int gpu_instance;
    unsigned int compute_instance;
    unsigned int multiprocessor_count;
    unsigned int copy_engine_count;
    unsigned int decoder_count;
    unsigned int encoder_count;
    unsigned int jpeg_count;
    unsigned int ofa_count;
    unsigned int gpu_slice_count;
    unsigned int compute_slice_count;
    unsigned long long memory_mib;
} door_mig_device;

typedef struct {
    int handle_code;
    int mode_code;
    unsigned int mode_current;
    unsigned int mode_pending;
    int instances_code;
    unsigned int instance_count;
    unsigned int compute_count;
    int devices_code;
    unsigned int device_count;
    door_instance instances[DOOR_INSTANCES];
    door_compute_instance compute[DOOR_COMPUTE_INSTANCES];
    door_mig_device devices[DOOR_MIG_DEVICES];
} door_mig;

/* The GPU instance profiles that the GPU has, with their possible placements; `out` is zero before. */
void door_read_profiles(door *door, const door_gpu *gpus, int position, door_profiles *out);
/* Mode, instances and MIG devices as they are now; `out` is zero before. Only the mode where that is off. */
void door_read_mig(door *door, const door_gpu *gpus, int position, const door_profiles *profiles, door_mig *out);
/* The compute instance profiles of one GPU instance (slice counts, shared engines; no placements); `out` is zero before. */
int door_compute_profiles(door *door, const door_gpu *gpus, int position, unsigned int gpu_instance,
                          door_profiles *out);
int door_remaining_capacity(door *door, const door_gpu *gpus, int position, unsigned int profile_id,
                            unsigned int *count);

/* The rest changes the GPU. The code is that of the call which door_last names. */
int door_set_mig_mode(door *door, const door_gpu *gpus, int position, unsigned int enabled, int *activation);
int door_get_mig_mode(door *door, const door_gpu *gpus, int position, unsigned int *current, unsigned int *pending);
/* `placement` NULL: NVML chooses. An instance whose facts cannot be read is destroyed again. */
int door_create_instance(door *door, const door_gpu *gpus, int position, unsigned int profile_id,
                         const door_placement *placement, door_instance *out);
int door_destroy_instance(door *door, const door_gpu *gpus, int position, unsigned int gpu_instance);
int door_create_compute_instance(door *door, const door_gpu *gpus, int position, unsigned int gpu_instance,
                                 unsigned int profile_id, door_compute_instance *out);
int door_destroy_compute_instance(door *door, const door_gpu *gpus, int position, unsigned int gpu_instance,
                                  unsigned int compute_instance);
int door_set_compute_mode(door *door, const door_gpu *gpus, int position, int mode);
int door_set_persistence_mode(door *door, const door_gpu *gpus, int position, int enabled);
/* cdef end */

#endif
