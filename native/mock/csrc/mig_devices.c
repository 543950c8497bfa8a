/* MIG devices: what NVML says of a compute instance as a device, and the ways to its handle. */
#include <stdio.h>

#include "mock.h"

_Static_assert(sizeof(nvmlDeviceAttributes_t) == 40, "nvmlDeviceAttributes_t");

static uint64_t hash(uint64_t seed, const char *bytes, size_t length)
{
    uint64_t value = UINT64_C(0xCBF29CE484222325) ^ seed; /* FNV-1a, finished as in splitmix64 */
    for (size_t i = 0; i < length; ++i)
        value = (value ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001B3);
    value = (value ^ (value >> 30U)) * UINT64_C(0xBF58476D1CE4E5B9);
    value = (value ^ (value >> 27U)) * UINT64_C(0x94D049BB133111EB);
    return value ^ (value >> 31U);
}

/* Depends on the GPU's UUID, both ids and how many instances were made before: the same steps give the same UUIDs. */
void mock_mig_uuid(const struct mock_gpu *gpu, unsigned int gi, unsigned int ci, char out[MOCK_UUID_ROOM])
{
    char text[MOCK_TEXT_BYTES + 64];
    const size_t have = gpu->uuid.length > 0 ? (size_t)gpu->uuid.length : 0;
    memcpy(text, gpu->uuid.bytes, have);
    const int more = snprintf(text + have, sizeof(text) - have, "/%u/%u/%llu", gi, ci,
                              (unsigned long long)gpu->gis[gi].cis[ci].tag);
    const uint64_t high = hash(1, text, have + (size_t)more), low = hash(2, text, have + (size_t)more);
    snprintf(out, MOCK_UUID_ROOM, "MIG-%08llx-%04llx-5%03llx-%04llx-%012llx", (unsigned long long)(high >> 32U),
             (unsigned long long)(high >> 16U & 0xFFFFU), (unsigned long long)(high & 0xFFFU),
             (unsigned long long)((low >> 48U & 0x3FFFU) | 0x8000U), (unsigned long long)(low & 0xFFFFFFFFFFFFU));
}

nvmlReturn_t impl_nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t gpuInstance, unsigned int profileId,
                                                     nvmlComputeInstance_t *computeInstances, unsigned int *count)
{
    MOCK_PRIVILEGED();
    struct mock_instance of;
    unsigned int found = 0;
    if (computeInstances == NULL || count == NULL || !mock_instance(gpuInstance, MOCK_GPU_INSTANCE, &of))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (mock_ci_starts((unsigned int)of.profile->slices, mock_ci_slices(profileId)) == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    for (unsigned int ci = 0; ci < MOCK_CI_IDS; ++ci) {
        const struct mock_ci *instance = &of.gi_record->cis[ci];
        if (__atomic_load_n(&instance->tag, __ATOMIC_ACQUIRE) != 0 && instance->profile == (int64_t)profileId)
            computeInstances[found++] = mock_instance_handle(MOCK_COMPUTE_INSTANCE, of.position, of.gi, ci);
    }
    *count = found;
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t gpuInstance, unsigned int id,
                                                        nvmlComputeInstance_t *computeInstance)
{
    MOCK_PRIVILEGED();
    struct mock_instance of;
    if (computeInstance == NULL || !mock_instance(gpuInstance, MOCK_GPU_INSTANCE, &of))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (id >= MOCK_CI_IDS || __atomic_load_n(&of.gi_record->cis[id].tag, __ATOMIC_ACQUIRE) == 0)
        return NVML_ERROR_NOT_FOUND;
    *computeInstance = mock_instance_handle(MOCK_COMPUTE_INSTANCE, of.position, of.gi, id);
    return NVML_SUCCESS;
}

/* The first version gives the GPU, the second the MIG device (nvml.h says "parent device" of both). */
static nvmlReturn_t ci_info(nvmlComputeInstance_t handle, bool second, nvmlComputeInstanceInfo_t *info)
{
    struct mock_instance found;
    if (info == NULL || !mock_instance(handle, MOCK_COMPUTE_INSTANCE, &found))
        return NVML_ERROR_INVALID_ARGUMENT;
    *info = (nvmlComputeInstanceInfo_t){
        .device = second ? mock_instance_handle(MOCK_MIG_DEVICE, found.position, found.gi, found.ci)
                         : mock_device_at(found.position),
        .gpuInstance = mock_instance_handle(MOCK_GPU_INSTANCE, found.position, found.gi, 0),
        .id = found.ci,
        .profileId = (unsigned int)found.ci_record->profile,
        .placement = {(unsigned int)found.ci_record->start, (unsigned int)found.ci_record->size},
    };
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlComputeInstanceGetInfo(nvmlComputeInstance_t computeInstance, nvmlComputeInstanceInfo_t *info)
{
    return ci_info(computeInstance, false, info);
}

nvmlReturn_t impl_nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t computeInstance, nvmlComputeInstanceInfo_t *info)
{
    return ci_info(computeInstance, true, info);
}

nvmlReturn_t impl_nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *isMigDevice)
{
    struct mock_instance found;
    MOCK_GIVE(isMigDevice, mock_instance(device, MOCK_MIG_DEVICE, &found));
}

nvmlReturn_t impl_nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    struct mock_instance found;
    if (!mock_instance(device, MOCK_MIG_DEVICE, &found))
        return NVML_ERROR_INVALID_ARGUMENT;
    MOCK_GIVE(id, found.gi);
}

nvmlReturn_t impl_nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    struct mock_instance found;
    if (!mock_instance(device, MOCK_MIG_DEVICE, &found))
        return NVML_ERROR_INVALID_ARGUMENT;
    MOCK_GIVE(id, found.ci);
}

nvmlReturn_t impl_nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t migDevice, nvmlDevice_t *device)
{
    struct mock_instance found;
    if (device == NULL || !mock_instance(migDevice, MOCK_MIG_DEVICE, &found))
        return NVML_ERROR_INVALID_ARGUMENT;
    *device = mock_device_at(found.position);
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    MOCK_GIVE(count, gpu->mig_current == 1 ? gpu->mig_compute_slices : 0);
}

nvmlReturn_t impl_nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *migDevice)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    unsigned int position, gi, ci;
    if (migDevice == NULL || !mock_position(device, &position))
        return NVML_ERROR_INVALID_ARGUMENT;
    if (gpu->mig_current < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (index >= (unsigned int)gpu->mig_compute_slices)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (gpu->mig_current == 0 || !mock_find_mig(gpu, index, &gi, &ci) || !mock_may_open(gpu, gi, ci))
        return NVML_ERROR_NOT_FOUND;
    *migDevice = mock_instance_handle(MOCK_MIG_DEVICE, position, gi, ci);
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    struct mock_instance of;
    if (attributes == NULL || !mock_instance(device, MOCK_MIG_DEVICE, &of))
        return NVML_ERROR_INVALID_ARGUMENT;
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = (unsigned int)of.ci_record->multiprocessors,
        .sharedCopyEngineCount = (unsigned int)of.profile->copy,
        .sharedDecoderCount = (unsigned int)of.profile->decoder,
        .sharedEncoderCount = (unsigned int)of.profile->encoder,
        .sharedJpegCount = (unsigned int)of.profile->jpeg,
        .sharedOfaCount = (unsigned int)of.profile->ofa,
        .gpuInstanceSliceCount = (unsigned int)of.profile->slices,
        .computeInstanceSliceCount = (unsigned int)of.ci_record->size,
        .memorySizeMB = (unsigned long long)of.profile->memory_mib,
    };
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    return impl_nvmlDeviceGetAttributes_v2(device, attributes);
}
