/*
 * MIG in the small NVML of the tests; included by stub.c. Lines of the configuration:
 *   mig on <address>                             MIG is enabled there
 *   gi <id>:<profile id>:<start>:<size> <address>
 *   ci <gi>:<id>:<profile id>:<start>:<size>:<index of the MIG device> <address>
 *   churn <n>                                    the first n walks over MIG devices give UUIDs that change
 *   profiles <n>                                 the newest struct version of profiles that is known
 *   activation <code>                            what setting the MIG mode reports beside its return code
 * and events, each told once; those before are forgotten when there are fewer lines than were told:
 *   event <type>:<data>:<gi>:<ci> <address>
 *   quick 1                                      waits come back at once
 */
static const struct profile {
    unsigned int id, slices, count, starts, step, size;
    const char *name;
} PROFILES[] = {
    {19, 1, 7, 7, 1, 1, "MIG 1g.10gb"}, {14, 2, 3, 3, 2, 2, "MIG 2g.20gb"}, {9, 3, 2, 2, 4, 4, "MIG 3g.40gb"},
    {0, 0, 0, 0, 0, 0, NULL}, {0, 7, 1, 1, 8, 8, "MIG 7g.80gb"}, {0, 0, 0, 0, 0, 0, NULL}, {0, 0, 0, 0, 0, 0, NULL},
    {20, 1, 1, 7, 1, 1, "MIG 1g.10gb+me"},
};
#define PROFILE_COUNT (sizeof(PROFILES) / sizeof(PROFILES[0]))

struct nvmlGpuInstance_st {
    int used;
    char address[32];
    unsigned int id, profile, start, size;
};
struct nvmlComputeInstance_st {
    int used;
    char address[32];
    unsigned int gi, id, profile, start, size, index;
};
static struct nvmlGpuInstance_st instances[32];
static struct nvmlComputeInstance_st computes[32];
static unsigned int walks;

/* Handles of MIG devices are addresses of this array, so that gate() sees no GPU in them. */
static char mig_handles[32][8] = {"mig"};

static void load_mig(void)
{
    static unsigned int seen;
    refresh();
    if (seen == refreshed) {
        return;
    }
    seen = refreshed;
    walks = 0;
    memset(instances, 0, sizeof(instances));
    memset(computes, 0, sizeof(computes));
    for (unsigned int i = 0, g = 0, c = 0; i < line_count; i++) {
        struct nvmlGpuInstance_st *gi = &instances[g];
        struct nvmlComputeInstance_st *ci = &computes[c];
        if (strcmp(lines[i].verb, "gi") == 0) {
            sscanf(lines[i].function, "%u:%u:%u:%u", &gi->id, &gi->profile, &gi->start, &gi->size);
            snprintf(gi->address, sizeof(gi->address), "%.31s", lines[i].address);
            instances[g++].used = 1;
        } else if (strcmp(lines[i].verb, "ci") == 0) {
            sscanf(lines[i].function, "%u:%u:%u:%u:%u:%u", &ci->gi, &ci->id, &ci->profile, &ci->start, &ci->size,
                   &ci->index);
            snprintf(ci->address, sizeof(ci->address), "%.31s", lines[i].address);
            computes[c++].used = 1;
        }
    }
}

static int mig_on(nvmlDevice_t device)
{
    char value[512];
    load_mig();
    return find("mig", "on", (const char *)device, value);
}

static nvmlReturn_t profile_of(const char *function, const void *device, unsigned int number_, const struct profile **out)
{
    int code = gate(function, device);
    if (code != NVML_SUCCESS) {
        return (nvmlReturn_t)code;
    }
    if (number_ >= PROFILE_COUNT) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *out = &PROFILES[number_];
    return (*out)->name == NULL ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int index,
                                                  nvmlGpuInstanceProfileInfo_v2_t *info)
{
    const struct profile *profile;
    unsigned int version = info->version >> 24;
    nvmlReturn_t code = profile_of(__func__, device, index, &profile);
    if (code != NVML_SUCCESS && code != NVML_ERROR_NOT_SUPPORTED) {
        return code;
    }
    if ((int)version > number("profiles", 3)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (code == NVML_SUCCESS && version == 3) {
        nvmlGpuInstanceProfileInfo_v3_t *third = (nvmlGpuInstanceProfileInfo_v3_t *)info;
        third->id = profile->id;
        third->sliceCount = profile->slices;
        third->instanceCount = profile->count;
        third->memorySizeMB = profile->size * 9984;
        third->capabilities = NVML_GPU_INSTANCE_PROFILE_CAPS_GFX;
        return (nvmlReturn_t)text(__func__, device, third->name, sizeof(third->name), profile->name);
    }
    if (code == NVML_SUCCESS) {
        info->id = profile->id;
        info->sliceCount = profile->slices;
        info->instanceCount = profile->count;
        info->memorySizeMB = profile->size * 9984;
        info->isP2pSupported = 1;
        return (nvmlReturn_t)text(__func__, device, info->name, sizeof(info->name), profile->name);
    }
    return code;
}
nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int index,
                                                 nvmlGpuInstanceProfileInfo_t *info)
{
    const struct profile *profile;
    nvmlReturn_t code = profile_of(__func__, device, index, &profile);
    if (code == NVML_SUCCESS) {
        info->id = profile->id;
        info->sliceCount = profile->slices;
        info->instanceCount = profile->count;
        info->memorySizeMB = profile->size * 9984;
    }
    return code;
}
static const struct profile *by_id(unsigned int id)
{
    for (unsigned int i = 0; i < PROFILE_COUNT; i++) {
        if (PROFILES[i].name != NULL && PROFILES[i].id == id) {
            return &PROFILES[i];
        }
    }
    return NULL;
}
nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
                                                           nvmlGpuInstancePlacement_t *places, unsigned int *count)
{
    const struct profile *profile = by_id(id);
    GATE(device);
    if (profile == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *count = (unsigned int)number("placements", (int)profile->starts);
    for (unsigned int i = 0; places != NULL && i < *count; i++) {
        places[*count - 1 - i].start = i * profile->step;
        places[*count - 1 - i].size = profile->size;
    }
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id, unsigned int *count)
{
    const struct profile *profile = by_id(id);
    GATE(device);
    if (profile == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *count = profile->count - 1;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *out, unsigned int *count)
{
    GATE(device);
    load_mig();
    *count = 0;
    for (unsigned int i = 0; i < 32; i++) {
        struct nvmlGpuInstance_st *gi = &instances[i];
        if (gi->used && gi->profile == id && strcasecmp(gi->address, (const char *)device) == 0) {
            out[(*count)++] = gi;
        }
    }
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *out)
{
    GATE(device);
    load_mig();
    for (unsigned int i = 0; i < 32; i++) {
        if (instances[i].used && instances[i].id == id && strcasecmp(instances[i].address, (const char *)device) == 0) {
            *out = &instances[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}
nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gi, nvmlGpuInstanceInfo_t *info)
{
    GATE(gi->address);
    info->id = gi->id;
    info->profileId = gi->profile;
    info->placement.start = gi->start;
    info->placement.size = gi->size;
    return NVML_SUCCESS;
}
static nvmlReturn_t make_instance(const char *function, nvmlDevice_t device, unsigned int id, int start,
                                  nvmlGpuInstance_t *out)
{
    const struct profile *profile = by_id(id);
    int code = gate(function, device);
    load_mig();
    if (code != NVML_SUCCESS) {
        return (nvmlReturn_t)code;
    }
    if (profile == NULL) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (int at = start >= 0 ? start : 7; at >= 0; at--) {
        unsigned int taken = (unsigned int)at % profile->step != 0 || (unsigned int)at / profile->step >= profile->starts;
        struct nvmlGpuInstance_st *free_ = NULL;
        for (unsigned int i = 0; i < 32; i++) {
            struct nvmlGpuInstance_st *gi = &instances[i];
            if (!gi->used) {
                free_ = free_ == NULL ? gi : free_;
            } else if (strcasecmp(gi->address, (const char *)device) == 0) {
                taken |= (unsigned int)at < gi->start + gi->size && gi->start < (unsigned int)at + profile->size;
            }
        }
        if (!taken && free_ != NULL) {
            free_->used = 1;
            free_->id = (unsigned int)at + 7;
            free_->profile = id;
            free_->start = (unsigned int)at;
            free_->size = profile->size;
            snprintf(free_->address, sizeof(free_->address), "%s", (const char *)device);
            *out = free_;
            return NVML_SUCCESS;
        }
        if (start >= 0) {
            break;
        }
    }
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}
nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *out)
{
    return make_instance(__func__, device, id, -1, out);
}
nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int id,
                                                      const nvmlGpuInstancePlacement_t *place, nvmlGpuInstance_t *out)
{
    return make_instance(__func__, device, id, (int)place->start, out);
}
nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t gi)
{
    GATE(gi->address);
    for (unsigned int i = 0; i < 32; i++) {
        if (computes[i].used && computes[i].gi == gi->id && strcasecmp(computes[i].address, gi->address) == 0) {
            return NVML_ERROR_IN_USE;
        }
    }
    gi->used = 0;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t gi, unsigned int index, unsigned int engines,
                                                           nvmlComputeInstanceProfileInfo_v2_t *info)
{
    const struct profile *profile;
    nvmlReturn_t code = profile_of(__func__, gi->address, index, &profile);
    if (code == NVML_SUCCESS && (engines != 0 || info->version >> 24 != 2 || number("profiles", 3) < 2)) {
        code = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    if (code == NVML_SUCCESS) {
        info->id = index;
        info->sliceCount = profile->slices;
        info->instanceCount = 7 / profile->slices;
        info->sharedDecoderCount = 1;
        code = (nvmlReturn_t)text(__func__, gi->address, info->name, sizeof(info->name), profile->name);
    }
    return code;
}
nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t gi, unsigned int index, unsigned int engines,
                                                          nvmlComputeInstanceProfileInfo_t *info)
{
    const struct profile *profile;
    nvmlReturn_t code = profile_of(__func__, gi->address, index, &profile);
    (void)engines;
    if (code == NVML_SUCCESS) {
        info->id = index;
        info->sliceCount = profile->slices;
        info->instanceCount = 7 / profile->slices;
        info->sharedDecoderCount = 1;
    }
    return code;
}
nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t gi, unsigned int id, nvmlComputeInstance_t *out,
                                                unsigned int *count)
{
    GATE(gi->address);
    *count = 0;
    for (unsigned int i = 0; i < 32; i++) {
        struct nvmlComputeInstance_st *ci = &computes[i];
        if (ci->used && ci->gi == gi->id && ci->profile == id && strcasecmp(ci->address, gi->address) == 0) {
            out[(*count)++] = ci;
        }
    }
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gi, unsigned int id, nvmlComputeInstance_t *out)
{
    GATE(gi->address);
    for (unsigned int i = 0; i < 32; i++) {
        struct nvmlComputeInstance_st *ci = &computes[i];
        if (ci->used && ci->gi == gi->id && ci->id == id && strcasecmp(ci->address, gi->address) == 0) {
            *out = ci;
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}
nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t ci, nvmlComputeInstanceInfo_t *info)
{
    GATE(ci->address);
    info->device = (nvmlDevice_t)mig_handles[ci - computes];
    info->id = ci->id;
    info->profileId = ci->profile;
    info->placement.start = ci->start;
    info->placement.size = ci->size;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t gi, unsigned int id, nvmlComputeInstance_t *out)
{
    GATE(gi->address);
    for (unsigned int i = 0; i < 32; i++) {
        struct nvmlComputeInstance_st *ci = &computes[i];
        if (!ci->used) {
            memset(ci, 0, sizeof(*ci));
            ci->used = 1;
            ci->gi = gi->id;
            ci->profile = id;
            ci->size = 1;
            ci->index = i;
            strcpy(ci->address, gi->address);
            *out = ci;
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}
nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t ci)
{
    GATE(ci->address);
    ci->used = 0;
    return NVML_SUCCESS;
}
static struct nvmlComputeInstance_st *mig_device(nvmlDevice_t device)
{
    const char *handle = (const char *)device;
    if (handle < mig_handles[0] || handle >= mig_handles[32]) {
        return NULL;
    }
    return &computes[(handle - mig_handles[0]) / (long)sizeof(mig_handles[0])];
}
/* -1: it is no MIG device. */
static int mig_uuid(nvmlDevice_t device, char *out, unsigned int length)
{
    const struct nvmlComputeInstance_st *ci = mig_device(device);
    char plain[64];
    if (ci == NULL) {
        return -1;
    }
    snprintf(plain, sizeof(plain), "MIG-%s-%u-%u-%u", ci->address, ci->gi, ci->id,
             (int)walks <= number("churn", 0) ? walks : 0);
    return text("nvmlDeviceGetUUID/mig", ci->address, out, length, plain);
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    GATE(device);
    walks++;
    *count = 7;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *out)
{
    GATE(device);
    for (unsigned int i = 0; i < 32; i++) {
        if (computes[i].used && computes[i].index == index && strcasecmp(computes[i].address, (const char *)device) == 0) {
            *out = (nvmlDevice_t)mig_handles[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    GATE(mig_device(device)->address);
    *id = mig_device(device)->gi;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    GATE(mig_device(device)->address);
    *id = mig_device(device)->id;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
    GATE(mig_device(device)->address);
    out->multiprocessorCount = 16;
    out->sharedOfaCount = 5;
    out->gpuInstanceSliceCount = 1;
    out->computeInstanceSliceCount = 2;
    out->memorySizeMB = 9984;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation)
{
    (void)mode;
    GATE(device);
    *activation = (nvmlReturn_t)number("activation", 0);
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode)
{
    GATE(device);
    set_mode[index_of(device)] = (int)mode;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
    GATE(device);
    set_persistence[index_of(device)] = (int)mode;
    return NVML_SUCCESS;
}

struct nvmlEventSet_st {
    unsigned long long masks[32];
};
static unsigned int told; /* lines of events before this one were told */
static int open_sets;

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    GATE(NULL);
    *set = calloc(1, sizeof(**set));
    open_sets++;
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    GATE(NULL);
    free(set);
    open_sets--;
    return NVML_SUCCESS;
}
int stub_open_sets(void) { return open_sets; }
nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    GATE(device);
    *types = (unsigned long long)number("supported", 0x1FF);
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    GATE(device);
    set->masks[index_of(device)] |= types;
    return NVML_SUCCESS;
}
static int next_event(nvmlEventSet_t set, nvmlEventData_t *data)
{
    unsigned int count = load();
    unsigned int events = 0;
    for (unsigned int i = 0; i < line_count; i++) {
        events += strcmp(lines[i].verb, "event") == 0;
    }
    told = events < told ? 0 : told;
    for (unsigned int seen = 0, i = 0; i < line_count; i++) {
        if (strcmp(lines[i].verb, "event") != 0 || seen++ < told) {
            continue;
        }
        told++;
        sscanf(lines[i].function, "%llx:%llu:%u:%u", &data->eventType, &data->eventData, &data->gpuInstanceId,
               &data->computeInstanceId);
        for (unsigned int gpu = 0; gpu < count; gpu++) {
            if (strcasecmp(addresses[gpu], lines[i].address) == 0 && (set->masks[gpu] & data->eventType) != 0) {
                data->device = (nvmlDevice_t)addresses[gpu];
                return 1;
            }
        }
        if (strcmp(lines[i].address, "-") == 0) {
            data->device = NULL;
            return 1;
        }
    }
    return 0;
}
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout)
{
    for (unsigned int waited = 0;; waited += 2) {
        GATE(NULL);
        if (next_event(set, data)) {
            return NVML_SUCCESS;
        }
        if (waited >= timeout || number("quick", 0)) {
            return NVML_ERROR_TIMEOUT;
        }
        usleep(2000);
    }
}
