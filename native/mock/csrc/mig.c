/* MIG: the mode, GPU instances, compute instances and the devices that they are.
 *
 * A handle of an instance is no address but a number: kind, GPU, ids and the tag that the instance got when it was made.
 * It is dead for ever once the instance is gone, costs no memory, and means the same in every process.
 */
#include "mock.h"

_Static_assert(sizeof(nvmlGpuInstanceInfo_t) == 24, "nvmlGpuInstanceInfo_t");
_Static_assert(sizeof(nvmlComputeInstanceInfo_t) == 32, "nvmlComputeInstanceInfo_t");
_Static_assert(sizeof(uintptr_t) == 8, "a 64-bit machine");

#define HANDLE_MARK UINT64_C(0x5A)

void *mock_instance_handle(enum mock_kind kind, unsigned int position, unsigned int gi, unsigned int ci)
{
    const struct mock_gi *instance = &mock_gpu(mock_device_at(position))->gis[gi];
    const uint64_t tag = kind == MOCK_GPU_INSTANCE ? instance->tag : instance->cis[ci].tag;
    return (void *)(uintptr_t)(HANDLE_MARK << 56U | (uint64_t)kind << 52U | (uint64_t)position << 40U |
                               (uint64_t)gi << 36U | (uint64_t)ci << 32U | (tag & 0xFFFFFFFFU));
}

bool mock_is_instance_handle(const void *handle, unsigned int *position)
{
    const uint64_t given = (uint64_t)(uintptr_t)handle;
    *position = (unsigned int)(given >> 40U & 0xFFFU);
    return given >> 56U == HANDLE_MARK && *position < (unsigned int)mock_node()->gpu_count;
}

bool mock_instance(const void *handle, enum mock_kind kind, struct mock_instance *out)
{
    const uint64_t given = (uint64_t)(uintptr_t)handle, tag = given & 0xFFFFFFFFU;
    if (!mock_is_instance_handle(handle, &out->position) || (given >> 52U & 0xFU) != (uint64_t)kind)
        return false;
    out->gi = (unsigned int)(given >> 36U & 0xFU);
    out->ci = (unsigned int)(given >> 32U & 0xFU);
    if (out->gi >= MOCK_GI_IDS || out->ci >= MOCK_CI_IDS)
        return false;
    out->gpu = mock_gpu(mock_device_at(out->position));
    out->gi_record = &out->gpu->gis[out->gi];
    out->ci_record = kind == MOCK_GPU_INSTANCE ? NULL : &out->gi_record->cis[out->ci];
    const uint64_t *stands = kind == MOCK_GPU_INSTANCE ? &out->gi_record->tag : &out->ci_record->tag;
    if (tag == 0 || (__atomic_load_n(stands, __ATOMIC_ACQUIRE) & 0xFFFFFFFFU) != tag ||
        __atomic_load_n(&out->gi_record->tag, __ATOMIC_ACQUIRE) == 0)
        return false;
    const int64_t profile = out->gi_record->profile;
    if (profile < 0 || profile >= MOCK_GI_PROFILES)
        return false;
    out->profile = &out->gpu->gi_profiles[profile];
    return true;
}

bool mock_in_use(const struct mock_gpu *gpu, int64_t gi, int64_t ci)
{
    for (unsigned int i = 0; i < MOCK_MAX_PROCESSES; ++i) {
        const struct mock_process *process = &gpu->processes[i];
        if (__atomic_load_n(&process->pid, __ATOMIC_ACQUIRE) != 0 && (gi < 0 || process->gi == gi) &&
            (ci < 0 || process->ci == ci))
            return true;
    }
    return false;
}

bool mock_find_mig(const struct mock_gpu *gpu, unsigned int index, unsigned int *gi, unsigned int *ci)
{
    for (*gi = 0; *gi < MOCK_GI_IDS; ++*gi)
        for (*ci = 0; *ci < MOCK_CI_IDS; ++*ci) {
            const struct mock_ci *instance = &gpu->gis[*gi].cis[*ci];
            if (__atomic_load_n(&gpu->gis[*gi].tag, __ATOMIC_ACQUIRE) != 0 &&
                __atomic_load_n(&instance->tag, __ATOMIC_ACQUIRE) != 0 && instance->mig_index == (int64_t)index)
                return true;
        }
    return false;
}

/* Everything that changes an instance: the record of a GPU in the file that can be written. Under the lock. */
static struct mock_gpu *writable(unsigned int position)
{
    struct mock_node *node = mock_writable_node();
    return (struct mock_gpu *)((char *)node + node->gpu_offset + sizeof(struct mock_gpu) * position);
}

static uint64_t next_tag(struct mock_gpu *gpu)
{
    uint64_t tag;
    do
        tag = (uint64_t)__atomic_add_fetch(&gpu->mig_instances_made, 1, __ATOMIC_RELAXED);
    while ((tag & 0xFFFFFFFFU) == 0);
    return tag;
}

static void forget(struct mock_gi *instance)
{
    __atomic_store_n(&instance->tag, 0, __ATOMIC_RELEASE);
    for (unsigned int ci = 0; ci < MOCK_CI_IDS; ++ci)
        __atomic_store_n(&instance->cis[ci].tag, 0, __ATOMIC_RELEASE);
}

static bool has_instances(const struct mock_gpu *gpu)
{
    for (unsigned int gi = 0; gi < MOCK_GI_IDS; ++gi)
        if (__atomic_load_n(&gpu->gis[gi].tag, __ATOMIC_ACQUIRE) != 0)
            return true;
    return false;
}

/* Why the new mode cannot come about now. A board that is reset loses its instances, any other must have none. */
static nvmlReturn_t activation(const struct mock_gpu *gpu)
{
    if (gpu->mig_activation != NVML_SUCCESS)
        return (nvmlReturn_t)gpu->mig_activation;
    if (mock_in_use(gpu, -1, -1))
        return NVML_ERROR_IN_USE;
    if (gpu->mig_reset == 1)
        return gpu->virtualization == NVML_GPU_VIRTUALIZATION_MODE_PASSTHROUGH ? NVML_ERROR_RESET_REQUIRED : NVML_SUCCESS;
    return has_instances(gpu) ? NVML_ERROR_IN_USE : NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activationStatus)
{
    unsigned int position;
    int lock;
    if (activationStatus == NULL || mode > NVML_DEVICE_MIG_ENABLE || !mock_position(device, &position))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (mock_gpu(device)->mig_current < 0 || mock_gpu(device)->virtualization == NVML_GPU_VIRTUALIZATION_MODE_VGPU)
        return NVML_ERROR_NOT_SUPPORTED;
    const nvmlReturn_t result = mock_lock(&lock);
    if (result != NVML_SUCCESS)
        return result;
    struct mock_gpu *gpu = writable(position);
    __atomic_store_n(&gpu->mig_pending, (int64_t)mode, __ATOMIC_RELEASE);
    *activationStatus = gpu->mig_current == (int64_t)mode ? NVML_SUCCESS : activation(gpu);
    if (*activationStatus == NVML_SUCCESS && gpu->mig_current != (int64_t)mode) {
        for (unsigned int gi = 0; gi < MOCK_GI_IDS; ++gi)
            forget(&gpu->gis[gi]);
        __atomic_store_n(&gpu->mig_current, (int64_t)mode, __ATOMIC_RELEASE);
        mock_show_capabilities(position);
    }
    mock_unlock(lock);
    return NVML_SUCCESS;
}

/* GPU instance ids form a heap: 0 the whole board, 1-2 its halves, 3-6 quarters, 7-14 eighths. */
static unsigned int level_of(const struct mock_gpu *gpu, int64_t size)
{
    unsigned int level = 0;
    while (level < 3 && size << level < gpu->mig_memory_slices)
        ++level;
    return level;
}

static bool related(unsigned int one, unsigned int other)
{
    unsigned int high = one > other ? one : other;
    const unsigned int low = one > other ? other : one;
    while (high > low)
        high = (high - 1) / 2;
    return high == low;
}

static bool id_is_free(const struct mock_gpu *gpu, unsigned int id, bool apart)
{
    for (unsigned int gi = 0; gi < MOCK_GI_IDS; ++gi)
        if (gpu->gis[gi].tag != 0 && (gi == id || (apart && related(gi, id))))
            return false;
    return true;
}

/* The lowest id of the level that is apart from every other; boards with seven compute slices have no fourth eighth.
 * Where placements were chosen by hand no such id may be left, and any other of the heap must do. */
static unsigned int choose_id(const struct mock_gpu *gpu, int64_t size)
{
    const unsigned int level = level_of(gpu, size), first = (1U << level) - 1U;
    for (unsigned int id = first; id <= 2 * first; ++id)
        if (!(gpu->mig_compute_slices == 7 && id == 10) && id_is_free(gpu, id, true))
            return id;
    for (unsigned int id = first; id <= 2 * first; ++id)
        if (id_is_free(gpu, id, false))
            return id;
    for (unsigned int id = MOCK_GI_IDS - 1; id > 0; --id)
        if (id_is_free(gpu, id, false))
            return id;
    return 0;
}

/* Where the instance goes: where it was asked to, else as near to the end as it fits. */
static nvmlReturn_t choose_start(const struct mock_gpu *gpu, const struct mock_gi_profile *profile,
                                 const nvmlGpuInstancePlacement_t *placement, int64_t *start)
{
    if (!mock_has_room(gpu, profile, 1))
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    for (int64_t i = profile->start_count - 1; i >= 0; --i) {
        *start = profile->starts[i];
        if ((placement == NULL || placement->start == (unsigned int)*start) && mock_fits(gpu, profile, *start))
            return NVML_SUCCESS;
    }
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

static bool is_legal(const struct mock_gi_profile *profile, const nvmlGpuInstancePlacement_t *placement)
{
    for (int64_t i = 0; i < profile->start_count; ++i)
        if (profile->starts[i] == (int64_t)placement->start)
            return profile->size == (int64_t)placement->size;
    return false;
}

static nvmlReturn_t create_gi(nvmlDevice_t device, unsigned int profileId, const nvmlGpuInstancePlacement_t *placement,
                              nvmlGpuInstance_t *gpuInstance)
{
    unsigned int position, index = 0;
    int lock;
    int64_t start = 0;
    if (gpuInstance == NULL || !mock_position(device, &position))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (mock_gpu(device)->mig_current != 1 || mock_gpu(device)->virtualization == NVML_GPU_VIRTUALIZATION_MODE_VGPU)
        return NVML_ERROR_NOT_SUPPORTED;
    const struct mock_gi_profile *profile = mock_gi_profile(mock_gpu(device), profileId, &index);
    if (profile == NULL || (placement != NULL && !is_legal(profile, placement)))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = mock_lock(&lock);
    if (result != NVML_SUCCESS)
        return result;
    struct mock_gpu *gpu = writable(position);
    result = gpu->mig_current == 1 ? choose_start(gpu, profile, placement, &start) : NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_SUCCESS) {
        const unsigned int id = choose_id(gpu, profile->size);
        struct mock_gi *made = &gpu->gis[id];
        forget(made);
        made->profile = (int64_t)index;
        made->start = start;
        made->size = profile->size;
        __atomic_store_n(&made->tag, next_tag(gpu), __ATOMIC_RELEASE);
        mock_show_capabilities(position);
        *gpuInstance = mock_instance_handle(MOCK_GPU_INSTANCE, position, id, 0);
    }
    mock_unlock(lock);
    return result;
}

nvmlReturn_t impl_nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int profileId,
                                              nvmlGpuInstance_t *gpuInstance)
{
    return create_gi(device, profileId, NULL, gpuInstance);
}

nvmlReturn_t impl_nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profileId,
                                                           const nvmlGpuInstancePlacement_t *placement,
                                                           nvmlGpuInstance_t *gpuInstance)
{
    return placement == NULL ? NVML_ERROR_INVALID_ARGUMENT : create_gi(device, profileId, placement, gpuInstance);
}

static bool has_compute_instances(const struct mock_gi *instance)
{
    for (unsigned int ci = 0; ci < MOCK_CI_IDS; ++ci)
        if (__atomic_load_n(&instance->cis[ci].tag, __ATOMIC_ACQUIRE) != 0)
            return true;
    return false;
}

nvmlReturn_t impl_nvmlGpuInstanceDestroy(nvmlGpuInstance_t gpuInstance)
{
    struct mock_instance found;
    int lock;
    nvmlReturn_t result = mock_lock(&lock);
    if (result != NVML_SUCCESS)
        return result;
    if (!mock_instance(gpuInstance, MOCK_GPU_INSTANCE, &found))
        result = NVML_ERROR_INVALID_ARGUMENT;
    else if (has_compute_instances(found.gi_record) || mock_in_use(found.gpu, (int64_t)found.gi, -1))
        result = NVML_ERROR_IN_USE;
    if (result == NVML_SUCCESS) {
        forget(&writable(found.position)->gis[found.gi]);
        mock_show_capabilities(found.position);
    }
    mock_unlock(lock);
    return result;
}

nvmlReturn_t impl_nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profileId,
                                            nvmlGpuInstance_t *gpuInstances, unsigned int *count)
{
    MOCK_PRIVILEGED();
    const struct mock_gpu *gpu = mock_gpu(device);
    unsigned int position, index, found = 0;
    if (gpuInstances == NULL || count == NULL || !mock_position(device, &position))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (gpu->mig_current != 1)
        return NVML_ERROR_NOT_SUPPORTED;
    if (mock_gi_profile(gpu, profileId, &index) == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int gi = 0; gi < MOCK_GI_IDS; ++gi)
        if (__atomic_load_n(&gpu->gis[gi].tag, __ATOMIC_ACQUIRE) != 0 && gpu->gis[gi].profile == (int64_t)index)
            gpuInstances[found++] = mock_instance_handle(MOCK_GPU_INSTANCE, position, gi, 0);
    *count = found;
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *gpuInstance)
{
    MOCK_PRIVILEGED();
    const struct mock_gpu *gpu = mock_gpu(device);
    unsigned int position;
    if (gpuInstance == NULL || !mock_position(device, &position))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (gpu->mig_current != 1)
        return NVML_ERROR_NOT_SUPPORTED;
    if (id >= MOCK_GI_IDS || __atomic_load_n(&gpu->gis[id].tag, __ATOMIC_ACQUIRE) == 0)
        return NVML_ERROR_NOT_FOUND;
    *gpuInstance = mock_instance_handle(MOCK_GPU_INSTANCE, position, id, 0);
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlGpuInstanceGetInfo(nvmlGpuInstance_t gpuInstance, nvmlGpuInstanceInfo_t *info)
{
    struct mock_instance found;
    if (info == NULL || !mock_instance(gpuInstance, MOCK_GPU_INSTANCE, &found))
        return NVML_ERROR_INVALID_ARGUMENT;
    *info = (nvmlGpuInstanceInfo_t){
        .device = mock_device_at(found.position),
        .id = found.gi,
        .profileId = (unsigned int)found.profile->id,
        .placement = {(unsigned int)found.gi_record->start, (unsigned int)found.gi_record->size},
    };
    return NVML_SUCCESS;
}

/* MIG devices keep their index while they live; one that is destroyed leaves a hole that the next one fills. */
static int64_t free_mig_index(const struct mock_gpu *gpu)
{
    unsigned int gi, ci;
    int64_t index = 0;
    while (mock_find_mig(gpu, (unsigned int)index, &gi, &ci))
        ++index;
    return index;
}

static bool ci_start(const struct mock_instance *of, unsigned int slices, const nvmlComputeInstancePlacement_t *placement,
                     int64_t *start)
{
    const unsigned int legal = mock_ci_starts((unsigned int)of->profile->slices, slices);
    unsigned int taken = 0;
    for (unsigned int i = 0; i < MOCK_CI_IDS; ++i)
        if (of->gi_record->cis[i].tag != 0)
            taken |= ((1U << of->gi_record->cis[i].size) - 1U) << of->gi_record->cis[i].start;
    for (*start = 0; *start < MOCK_CI_IDS; ++*start)
        if ((legal >> *start & 1U) != 0 && (taken & ((1U << slices) - 1U) << *start) == 0 &&
            (placement == NULL || placement->start == (unsigned int)*start))
            return true;
    return false;
}

static void make_ci(const struct mock_instance *of, unsigned int profile, int64_t start, unsigned int *id)
{
    struct mock_gpu *gpu = writable(of->position);
    struct mock_ci *cis = gpu->gis[of->gi].cis;
    for (*id = 0; cis[*id].tag != 0;)
        ++*id;
    struct mock_ci *made = &cis[*id];
    const unsigned int slices = mock_ci_slices(profile);
    made->mig_index = free_mig_index(gpu);
    made->profile = (int64_t)profile;
    made->start = start;
    made->size = (int64_t)slices;
    made->multiprocessors = (int64_t)mock_ci_multiprocessors(gpu, of->profile, slices);
    __atomic_store_n(&made->tag, next_tag(gpu), __ATOMIC_RELEASE);
    mock_show_capabilities(of->position);
}

static nvmlReturn_t create_ci(nvmlGpuInstance_t gpuInstance, unsigned int profileId,
                              const nvmlComputeInstancePlacement_t *placement, nvmlComputeInstance_t *computeInstance)
{
    struct mock_instance of;
    int lock;
    int64_t start;
    unsigned int id;
    const unsigned int slices = mock_ci_slices(profileId);
    if (computeInstance == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t result = mock_lock(&lock);
    if (result != NVML_SUCCESS)
        return result;
    if (!mock_instance(gpuInstance, MOCK_GPU_INSTANCE, &of)) {
        result = NVML_ERROR_INVALID_ARGUMENT;
    } else {
        const unsigned int legal = mock_ci_starts((unsigned int)of.profile->slices, slices);
        if (legal == 0)
            result = NVML_ERROR_NOT_SUPPORTED;
        else if (placement != NULL && (placement->size != slices || placement->start >= MOCK_CI_IDS ||
                                       (legal >> placement->start & 1U) == 0))
            result = NVML_ERROR_INVALID_ARGUMENT;
        else if (!ci_start(&of, slices, placement, &start))
            result = NVML_ERROR_INSUFFICIENT_RESOURCES;
    }
    if (result == NVML_SUCCESS) {
        make_ci(&of, profileId, start, &id);
        *computeInstance = mock_instance_handle(MOCK_COMPUTE_INSTANCE, of.position, of.gi, id);
    }
    mock_unlock(lock);
    return result;
}

nvmlReturn_t impl_nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t gpuInstance, unsigned int profileId,
                                                       nvmlComputeInstance_t *computeInstance)
{
    return create_ci(gpuInstance, profileId, NULL, computeInstance);
}

nvmlReturn_t impl_nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t gpuInstance,
                                                                    unsigned int profileId,
                                                                    const nvmlComputeInstancePlacement_t *placement,
                                                                    nvmlComputeInstance_t *computeInstance)
{
    return placement == NULL ? NVML_ERROR_INVALID_ARGUMENT : create_ci(gpuInstance, profileId, placement, computeInstance);
}

nvmlReturn_t impl_nvmlComputeInstanceDestroy(nvmlComputeInstance_t computeInstance)
{
    struct mock_instance found;
    int lock;
    nvmlReturn_t result = mock_lock(&lock);
    if (result != NVML_SUCCESS)
        return result;
    if (!mock_instance(computeInstance, MOCK_COMPUTE_INSTANCE, &found))
        result = NVML_ERROR_INVALID_ARGUMENT;
    else if (mock_in_use(found.gpu, (int64_t)found.gi, (int64_t)found.ci))
        result = NVML_ERROR_IN_USE;
    if (result == NVML_SUCCESS) {
        __atomic_store_n(&writable(found.position)->gis[found.gi].cis[found.ci].tag, 0, __ATOMIC_RELEASE);
        mock_show_capabilities(found.position);
    }
    mock_unlock(lock);
    return result;
}
