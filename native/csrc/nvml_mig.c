/* See nvml_mig.h. Reading: a list is whole or it is unknown, because a short one would look like fewer instances. */
#include "nvml_mig.h"

#include "nvml_api.h"

_Static_assert(sizeof(nvmlGpuInstancePlacement_t) == sizeof(door_placement), "nvmlGpuInstancePlacement_t");
_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_t) == 48, "nvmlGpuInstanceProfileInfo_t");
_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_v2_t) == 152, "nvmlGpuInstanceProfileInfo_v2_t");
_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_v3_t) == 152, "nvmlGpuInstanceProfileInfo_v3_t");
_Static_assert(sizeof(nvmlComputeInstanceProfileInfo_v2_t) == 136, "nvmlComputeInstanceProfileInfo_v2_t");
_Static_assert(sizeof(nvmlGpuInstanceInfo_t) == 24, "nvmlGpuInstanceInfo_t");
_Static_assert(sizeof(nvmlComputeInstanceInfo_t) == 32, "nvmlComputeInstanceInfo_t");
_Static_assert(sizeof(nvmlDeviceAttributes_t) == 40, "nvmlDeviceAttributes_t");

/* The structs of all versions name the same things the same way. */
#define TAKE_SIZES(out, info)                                  \
    do {                                                       \
        (out)->id = (info).id;                                 \
        (out)->slice_count = (info).sliceCount;                \
        (out)->instance_count = (info).instanceCount;          \
        (out)->multiprocessor_count = (info).multiprocessorCount; \
    } while (0)
#define TAKE_GPU_PROFILE(out, info)                            \
    do {                                                       \
        TAKE_SIZES(out, info);                                 \
        (out)->copy_engine_count = (info).copyEngineCount;     \
        (out)->decoder_count = (info).decoderCount;            \
        (out)->encoder_count = (info).encoderCount;            \
        (out)->jpeg_count = (info).jpegCount;                  \
        (out)->ofa_count = (info).ofaCount;                    \
        (out)->memory_mib = (info).memorySizeMB;               \
    } while (0)
#define TAKE_COMPUTE_PROFILE(out, info)                        \
    do {                                                       \
        TAKE_SIZES(out, info);                                 \
        (out)->copy_engine_count = (info).sharedCopyEngineCount; \
        (out)->decoder_count = (info).sharedDecoderCount;      \
        (out)->encoder_count = (info).sharedEncoderCount;      \
        (out)->jpeg_count = (info).sharedJpegCount;            \
        (out)->ofa_count = (info).sharedOfaCount;              \
    } while (0)

static int gpu_profile(door *door, nvmlDevice_t device, unsigned int index, unsigned int version, door_profile *out)
{
    int code;
    if (version == 3) {
        nvmlGpuInstanceProfileInfo_v3_t info;
        memset(&info, 0, sizeof(info));
        info.version = nvmlGpuInstanceProfileInfo_v3;
        code = CALL(door, nvmlDeviceGetGpuInstanceProfileInfoV, device, index, (nvmlGpuInstanceProfileInfo_v2_t *)&info);
        TAKE_GPU_PROFILE(out, info);
        out->capabilities = info.capabilities;
        memcpy(out->name, info.name, sizeof(info.name));
    } else if (version == 2) {
        nvmlGpuInstanceProfileInfo_v2_t info;
        memset(&info, 0, sizeof(info));
        info.version = nvmlGpuInstanceProfileInfo_v2;
        code = CALL(door, nvmlDeviceGetGpuInstanceProfileInfoV, device, index, &info);
        TAKE_GPU_PROFILE(out, info);
        out->p2p = info.isP2pSupported;
        memcpy(out->name, info.name, sizeof(info.name));
    } else {
        nvmlGpuInstanceProfileInfo_t info;
        memset(&info, 0, sizeof(info));
        code = CALL(door, nvmlDeviceGetGpuInstanceProfileInfo, device, index, &info);
        TAKE_GPU_PROFILE(out, info);
        out->p2p = info.isP2pSupported;
    }
    out->index = index;
    out->struct_version = version;
    return code;
}

static int compute_profile(door *door, nvmlGpuInstance_t instance, unsigned int index, unsigned int version,
                           door_profile *out)
{
    int code;
    if (version == 2) {
        nvmlComputeInstanceProfileInfo_v2_t info;
        memset(&info, 0, sizeof(info));
        info.version = nvmlComputeInstanceProfileInfo_v2;
        code = CALL(door, nvmlGpuInstanceGetComputeInstanceProfileInfoV, instance, index,
                    NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, &info);
        TAKE_COMPUTE_PROFILE(out, info);
        memcpy(out->name, info.name, sizeof(info.name));
    } else {
        nvmlComputeInstanceProfileInfo_t info;
        memset(&info, 0, sizeof(info));
        code = CALL(door, nvmlGpuInstanceGetComputeInstanceProfileInfo, instance, index,
                    NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, &info);
        TAKE_COMPUTE_PROFILE(out, info);
    }
    out->index = index;
    out->struct_version = version;
    return code;
}

static void read_placements(door *door, nvmlDevice_t device, door_profile *profile)
{
    nvmlGpuInstancePlacement_t *places = (nvmlGpuInstancePlacement_t *)profile->placements;
    unsigned int count = 0;
    /* The first call is for the number alone. */
    int code = CALL(door, nvmlDeviceGetGpuInstancePossiblePlacements_v2, device, profile->id, NULL, &count);
    if (code == NVML_SUCCESS && count > DOOR_PLACEMENTS) {
        code = NVML_ERROR_INSUFFICIENT_SIZE;
    } else if (code == NVML_SUCCESS && count > 0) {
        code = CALL(door, nvmlDeviceGetGpuInstancePossiblePlacements_v2, device, profile->id, places, &count);
    }
    profile->placements_code = code;
    profile->placement_count = code == NVML_SUCCESS && count <= DOOR_PLACEMENTS ? count : 0;
}

/* One profile per number: NOT_SUPPORTED is a hole, INVALID_ARGUMENT the end. Until the first answer INVALID_ARGUMENT may
   also mean that the struct's version is unknown, so older ones are tried then. */
static int list_profiles(door *door, nvmlDevice_t device, nvmlGpuInstance_t instance, unsigned int version,
                         door_profiles *out)
{
    int answered = 0;
    int code = NVML_ERROR_NOT_SUPPORTED;
    int hole = NVML_SUCCESS;
    for (unsigned int index = 0; index < DOOR_PROFILES; index++) {
        door_profile *profile = &out->profiles[out->count];
        for (;;) {
            memset(profile, 0, sizeof(*profile));
            code = instance != NULL ? compute_profile(door, instance, index, version, profile)
                                    : gpu_profile(door, device, index, version, profile);
            if (answered || version == 1 || !(door_too_new(code) || code == NVML_ERROR_INVALID_ARGUMENT)) {
                break;
            }
            version--;
        }
        if (code == NVML_ERROR_INVALID_ARGUMENT) {
            break;
        }
        if (code == NVML_ERROR_NOT_SUPPORTED) {
            hole = code;
            continue;
        }
        if (code != NVML_SUCCESS) {
            out->count = 0;
            return code;
        }
        answered = 1;
        if (instance == NULL) {
            read_placements(door, device, profile);
        }
        out->count++;
    }
    if (out->count > 0) {
        return NVML_SUCCESS;
    }
    return hole != NVML_SUCCESS ? hole : code;
}

void door_read_profiles(door *door, const door_gpu *gpus, int position, door_profiles *out)
{
    nvmlDevice_t device = NULL;
    out->code = door_reach(door, gpus, position, &device);
    if (out->code == NVML_SUCCESS) {
        out->code = list_profiles(door, device, NULL, 3, out);
    }
    door->gpu = -1;
}

static int compute_info(door *door, nvmlComputeInstance_t handle, unsigned int instance, door_compute_instance *out)
{
    nvmlComputeInstanceInfo_t info;
    memset(&info, 0, sizeof(info));
    int code = CALL(door, nvmlComputeInstanceGetInfo_v2, handle, &info);
    if (code != NVML_SUCCESS) {
        return code;
    }
    out->gpu_instance = instance;
    out->id = info.id;
    out->profile_id = info.profileId;
    out->placement.start = info.placement.start;
    out->placement.size = info.placement.size;
    /* The device in the info is the MIG device: its UUID without the walk over all of them, which is slow under load. */
    out->uuid_code = info.device == NULL ? (int)NVML_ERROR_NOT_FOUND
                                         : CALL(door, nvmlDeviceGetUUID, info.device, out->uuid, DOOR_TEXT);
    return NVML_SUCCESS;
}

static int list_compute(door *door, nvmlGpuInstance_t instance, unsigned int id, door_profiles *scratch, door_mig *out)
{
    memset(scratch, 0, sizeof(*scratch));
    int code = list_profiles(door, NULL, instance, 2, scratch);
    for (unsigned int i = 0; code == NVML_SUCCESS && i < scratch->count; i++) {
        nvmlComputeInstance_t handles[DOOR_COMPUTE_INSTANCES];
        unsigned int count = DOOR_COMPUTE_INSTANCES;
        if (scratch->profiles[i].instance_count > DOOR_COMPUTE_INSTANCES) {
            return NVML_ERROR_INSUFFICIENT_SIZE;
        }
        code = CALL(door, nvmlGpuInstanceGetComputeInstances, instance, scratch->profiles[i].id, handles, &count);
        if (code == NVML_SUCCESS && count > DOOR_COMPUTE_INSTANCES - out->compute_count) {
            return NVML_ERROR_INSUFFICIENT_SIZE;
        }
        for (unsigned int j = 0; code == NVML_SUCCESS && j < count; j++) {
            code = compute_info(door, handles[j], id, &out->compute[out->compute_count]);
            out->compute_count += code == NVML_SUCCESS;
        }
    }
    return code;
}

static int instance_info(door *door, nvmlGpuInstance_t handle, door_instance *out)
{
    nvmlGpuInstanceInfo_t info;
    memset(&info, 0, sizeof(info));
    int code = CALL(door, nvmlGpuInstanceGetInfo, handle, &info);
    out->id = info.id;
    out->profile_id = info.profileId;
    out->placement.start = info.placement.start;
    out->placement.size = info.placement.size;
    return code;
}

static int list_instances(door *door, nvmlDevice_t device, const door_profiles *profiles, door_mig *out)
{
    door_profiles scratch;
    int code = profiles->code;
    for (unsigned int i = 0; code == NVML_SUCCESS && i < profiles->count; i++) {
        nvmlGpuInstance_t handles[DOOR_INSTANCES];
        unsigned int count = DOOR_INSTANCES;
        if (profiles->profiles[i].instance_count > DOOR_INSTANCES) {
            return NVML_ERROR_INSUFFICIENT_SIZE;
        }
        code = CALL(door, nvmlDeviceGetGpuInstances, device, profiles->profiles[i].id, handles, &count);
        if (code == NVML_SUCCESS && count > DOOR_INSTANCES - out->instance_count) {
            return NVML_ERROR_INSUFFICIENT_SIZE;
        }
        for (unsigned int j = 0; code == NVML_SUCCESS && j < count; j++) {
            door_instance *instance = &out->instances[out->instance_count];
            code = instance_info(door, handles[j], instance);
            if (code == NVML_SUCCESS) {
                out->instance_count++;
                code = list_compute(door, handles[j], instance->id, &scratch, out);
            }
        }
    }
    return code;
}

static void read_device(door *door, nvmlDevice_t handle, unsigned int index, door_mig_device *out)
{
    nvmlDeviceAttributes_t attributes;
    memset(&attributes, 0, sizeof(attributes));
    out->index = index;
    out->uuid_code = CALL(door, nvmlDeviceGetUUID, handle, out->uuid, DOOR_TEXT);
    out->gpu_instance_code = CALL(door, nvmlDeviceGetGpuInstanceId, handle, &out->gpu_instance);
    out->compute_instance_code = CALL(door, nvmlDeviceGetComputeInstanceId, handle, &out->compute_instance);
    out->attributes_code = CALL(door, nvmlDeviceGetAttributes_v2, handle, &attributes);
    out->multiprocessor_count = attributes.multiprocessorCount;
    out->copy_engine_count = attributes.sharedCopyEngineCount;
    out->decoder_count = attributes.sharedDecoderCount;
    out->encoder_count = attributes.sharedEncoderCount;
    out->jpeg_count = attributes.sharedJpegCount;
    out->ofa_count = attributes.sharedOfaCount;
    out->gpu_slice_count = attributes.gpuInstanceSliceCount;
    out->compute_slice_count = attributes.computeInstanceSliceCount;
    out->memory_mib = attributes.memorySizeMB;
}

/* The numbers of MIG devices have holes: the walk goes on to the last one that there may be. */
static int list_devices(door *door, nvmlDevice_t device, door_mig *out)
{
    unsigned int most = 0;
    int code = CALL(door, nvmlDeviceGetMaxMigDeviceCount, device, &most);
    for (unsigned int index = 0; code == NVML_SUCCESS && index < most; index++) {
        nvmlDevice_t handle = NULL;
        code = CALL(door, nvmlDeviceGetMigDeviceHandleByIndex, device, index, &handle);
        if (code == NVML_ERROR_NOT_FOUND) {
            code = NVML_SUCCESS;
            continue;
        }
        if (code == NVML_SUCCESS && out->device_count == DOOR_MIG_DEVICES) {
            return NVML_ERROR_INSUFFICIENT_SIZE;
        }
        if (code == NVML_SUCCESS) {
            read_device(door, handle, index, &out->devices[out->device_count++]);
        }
    }
    return code;
}

void door_read_mig(door *door, const door_gpu *gpus, int position, const door_profiles *profiles, door_mig *out)
{
    nvmlDevice_t device = NULL;
    out->handle_code = door_reach(door, gpus, position, &device);
    if (out->handle_code == NVML_SUCCESS) {
        out->mode_code = CALL(door, nvmlDeviceGetMigMode, device, &out->mode_current, &out->mode_pending);
        if (out->mode_code == NVML_SUCCESS && out->mode_current == NVML_DEVICE_MIG_ENABLE) {
            out->instances_code = list_instances(door, device, profiles, out);
            out->devices_code = list_devices(door, device, out);
        }
    }
    door->gpu = -1;
}

/* A call about one GPU, and about one instance of it where that is asked for. */
static int reach_instance(door *door, const door_gpu *gpus, int position, unsigned int gpu_instance,
                          nvmlGpuInstance_t *instance)
{
    nvmlDevice_t device = NULL;
    int code = door_reach(door, gpus, position, &device);
    return code != NVML_SUCCESS ? code : CALL(door, nvmlDeviceGetGpuInstanceById, device, gpu_instance, instance);
}

static int done(door *door, int code)
{
    door->gpu = -1;
    return code;
}

/* As CALL with the handle of the GPU, where there is one. */
#define ON_GPU(door, gpus, position, function, ...)                                          \
    nvmlDevice_t device = NULL;                                                              \
    int code = door_reach(door, gpus, position, &device);                                    \
    return done(door, code != NVML_SUCCESS ? code : CALL(door, function, device, __VA_ARGS__))

int door_compute_profiles(door *door, const door_gpu *gpus, int position, unsigned int gpu_instance, door_profiles *out)
{
    nvmlGpuInstance_t instance = NULL;
    out->code = reach_instance(door, gpus, position, gpu_instance, &instance);
    if (out->code == NVML_SUCCESS) {
        out->code = list_profiles(door, NULL, instance, 2, out);
    }
    return done(door, out->code);
}

int door_remaining_capacity(door *door, const door_gpu *gpus, int position, unsigned int profile_id,
                            unsigned int *count)
{
    ON_GPU(door, gpus, position, nvmlDeviceGetGpuInstanceRemainingCapacity, profile_id, count);
}

int door_set_mig_mode(door *door, const door_gpu *gpus, int position, unsigned int enabled, int *activation)
{
    nvmlReturn_t status = NVML_SUCCESS;
    nvmlDevice_t device = NULL;
    int code = door_reach(door, gpus, position, &device);
    if (code == NVML_SUCCESS) {
        code = CALL(door, nvmlDeviceSetMigMode, device, enabled, &status);
    }
    *activation = (int)status;
    return done(door, code);
}

int door_get_mig_mode(door *door, const door_gpu *gpus, int position, unsigned int *current, unsigned int *pending)
{
    ON_GPU(door, gpus, position, nvmlDeviceGetMigMode, current, pending);
}

int door_create_instance(door *door, const door_gpu *gpus, int position, unsigned int profile_id,
                         const door_placement *placement, door_instance *out)
{
    nvmlDevice_t device = NULL;
    nvmlGpuInstance_t instance = NULL;
    int code = door_reach(door, gpus, position, &device);
    if (code == NVML_SUCCESS && placement != NULL) {
        nvmlGpuInstancePlacement_t place = {.start = placement->start, .size = placement->size};
        code = CALL(door, nvmlDeviceCreateGpuInstanceWithPlacement, device, profile_id, &place, &instance);
    } else if (code == NVML_SUCCESS) {
        code = CALL(door, nvmlDeviceCreateGpuInstance, device, profile_id, &instance);
    }
    if (code == NVML_SUCCESS) {
        code = instance_info(door, instance, out);
        if (code != NVML_SUCCESS) {
            const char *failed = door->last;
            (void)CALL(door, nvmlGpuInstanceDestroy, instance);
            door->last = failed;
        }
    }
    return done(door, code);
}

int door_destroy_instance(door *door, const door_gpu *gpus, int position, unsigned int gpu_instance)
{
    nvmlGpuInstance_t instance = NULL;
    int code = reach_instance(door, gpus, position, gpu_instance, &instance);
    return done(door, code != NVML_SUCCESS ? code : CALL(door, nvmlGpuInstanceDestroy, instance));
}

int door_create_compute_instance(door *door, const door_gpu *gpus, int position, unsigned int gpu_instance,
                                 unsigned int profile_id, door_compute_instance *out)
{
    nvmlGpuInstance_t instance = NULL;
    nvmlComputeInstance_t made = NULL;
    int code = reach_instance(door, gpus, position, gpu_instance, &instance);
    if (code == NVML_SUCCESS) {
        code = CALL(door, nvmlGpuInstanceCreateComputeInstance, instance, profile_id, &made);
    }
    if (code == NVML_SUCCESS) {
        code = compute_info(door, made, gpu_instance, out);
        if (code != NVML_SUCCESS) {
            const char *failed = door->last;
            (void)CALL(door, nvmlComputeInstanceDestroy, made);
            door->last = failed;
        }
    }
    return done(door, code);
}

int door_destroy_compute_instance(door *door, const door_gpu *gpus, int position, unsigned int gpu_instance,
                                  unsigned int compute_instance)
{
    nvmlGpuInstance_t instance = NULL;
    nvmlComputeInstance_t handle = NULL;
    int code = reach_instance(door, gpus, position, gpu_instance, &instance);
    if (code == NVML_SUCCESS) {
        code = CALL(door, nvmlGpuInstanceGetComputeInstanceById, instance, compute_instance, &handle);
    }
    return done(door, code != NVML_SUCCESS ? code : CALL(door, nvmlComputeInstanceDestroy, handle));
}

int door_set_compute_mode(door *door, const door_gpu *gpus, int position, int mode)
{
    ON_GPU(door, gpus, position, nvmlDeviceSetComputeMode, (nvmlComputeMode_t)mode);
}

int door_set_persistence_mode(door *door, const door_gpu *gpus, int position, int enabled)
{
    ON_GPU(door, gpus, position, nvmlDeviceSetPersistenceMode, enabled ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED);
}
