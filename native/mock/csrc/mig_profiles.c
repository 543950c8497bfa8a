/* What MIG can make of a board: profiles, legal placements, and how much of it is still free. */
#include <stdio.h>

#include "mock.h"

_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_v2_t) == 152, "nvmlGpuInstanceProfileInfo_v2_t");
_Static_assert(sizeof(nvmlGpuInstanceProfileInfo_v3_t) == 152, "nvmlGpuInstanceProfileInfo_v3_t");
_Static_assert(sizeof(nvmlComputeInstanceProfileInfo_v2_t) == 136, "nvmlComputeInstanceProfileInfo_v2_t");
_Static_assert(NVML_GPU_INSTANCE_PROFILE_COUNT == MOCK_GI_PROFILES, "profiles");

const struct mock_gi_profile *mock_gi_profile(const struct mock_gpu *gpu, unsigned int id, unsigned int *index)
{
    for (unsigned int i = 0; i < MOCK_GI_PROFILES; ++i)
        if (gpu->gi_profiles[i].id >= 0 && gpu->gi_profiles[i].id == (int64_t)id) {
            if (index != NULL)
                *index = i;
            return &gpu->gi_profiles[i];
        }
    return NULL;
}

/* Profiles can be read while MIG is off where the board says so (NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE). */
static nvmlReturn_t can_query(const struct mock_gpu *gpu)
{
    const bool on = __atomic_load_n(&gpu->mig_current, __ATOMIC_RELAXED) == 1;
    return on || (gpu->mig_current >= 0 && gpu->mig_query == 1) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t by_index(nvmlDevice_t device, unsigned int index, const struct mock_gi_profile **profile)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    if (index >= MOCK_GI_PROFILES)
        return NVML_ERROR_INVALID_ARGUMENT;
    *profile = &gpu->gi_profiles[index];
    return (*profile)->id < 0 ? NVML_ERROR_NOT_SUPPORTED : can_query(gpu);
}

nvmlReturn_t impl_nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                                      nvmlGpuInstanceProfileInfo_t *info)
{
    const struct mock_gi_profile *found;
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = by_index(device, profile, &found);
    if (result != NVML_SUCCESS)
        return result;
    *info = (nvmlGpuInstanceProfileInfo_t){
        .id = (unsigned int)found->id,
        .isP2pSupported = (unsigned int)found->p2p,
        .sliceCount = (unsigned int)found->slices,
        .instanceCount = (unsigned int)found->instances,
        .multiprocessorCount = (unsigned int)found->multiprocessors,
        .copyEngineCount = (unsigned int)found->copy,
        .decoderCount = (unsigned int)found->decoder,
        .encoderCount = (unsigned int)found->encoder,
        .jpegCount = (unsigned int)found->jpeg,
        .ofaCount = (unsigned int)found->ofa,
        .memorySizeMB = (unsigned long long)found->memory_mib,
    };
    return NVML_SUCCESS;
}

/* "MIG 1g.10gb"; foreign bytes and a missing end of the profile's name come through as they are. */
static void give_name(const struct mock_text *name, unsigned int compute, char out[NVML_DEVICE_NAME_V2_BUFFER_SIZE])
{
    char prefix[16];
    const int length = compute != 0 ? snprintf(prefix, sizeof(prefix), "MIG %uc.", compute)
                                    : snprintf(prefix, sizeof(prefix), "MIG ");
    memset(out, 0, NVML_DEVICE_NAME_V2_BUFFER_SIZE);
    if (mock_text(name, out + length, NVML_DEVICE_NAME_V2_BUFFER_SIZE - (unsigned int)length) == NVML_SUCCESS)
        memcpy(out, prefix, (size_t)length);
}

/* v2 and v3 are of one size, but not of one layout: v3 has no isP2pSupported and ends with the capabilities. */
static nvmlReturn_t give_versioned(const char *function, nvmlDevice_t device, const struct mock_gi_profile *found,
                                   nvmlGpuInstanceProfileInfo_v2_t *info)
{
    const bool third = info->version == MOCK_VERSION_OF(nvmlGpuInstanceProfileInfo_v3_t, 3);
    if (!third && info->version != MOCK_VERSION_OF(nvmlGpuInstanceProfileInfo_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (mock_refuses(function, device, third ? 3 : 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlGpuInstanceProfileInfo_v3_t *out = (nvmlGpuInstanceProfileInfo_v3_t *)info;
    unsigned int *numbers = third ? &out->sliceCount : &info->sliceCount;
    const int64_t values[] = {found->slices,  found->instances, found->multiprocessors, found->copy,
                              found->decoder, found->encoder,   found->jpeg,            found->ofa};
    info->id = (unsigned int)found->id;
    if (!third)
        info->isP2pSupported = (unsigned int)found->p2p;
    for (size_t i = 0; i < sizeof(values) / sizeof(*values); ++i)
        numbers[i] = (unsigned int)values[i];
    if (third) {
        out->memorySizeMB = (unsigned long long)found->memory_mib;
        out->capabilities = (found->p2p == 1 ? NVML_GPU_INSTANCE_PROFILE_CAPS_P2P : 0) |
                            (found->gfx == 1 ? NVML_GPU_INSTANCE_PROFILE_CAPS_GFX : 0);
    } else {
        info->memorySizeMB = (unsigned long long)found->memory_mib;
    }
    give_name(&found->name, 0, third ? out->name : info->name);
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
                                                       nvmlGpuInstanceProfileInfo_v2_t *info)
{
    const struct mock_gi_profile *found;
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = by_index(device, profile, &found);
    return result == NVML_SUCCESS ? give_versioned("nvmlDeviceGetGpuInstanceProfileInfoV", device, found, info) : result;
}

nvmlReturn_t impl_nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int profileId,
                                                           nvmlGpuInstanceProfileInfo_v2_t *info)
{
    const struct mock_gi_profile *found = mock_gi_profile(mock_gpu(device), profileId, NULL);
    if (info == NULL || mock_gpu(device)->mig_current < 0)
        return info == NULL ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
    if (found == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = can_query(mock_gpu(device));
    return result == NVML_SUCCESS ? give_versioned("nvmlDeviceGetGpuInstanceProfileInfoByIdV", device, found, info)
                                  : result;
}

static nvmlReturn_t by_id(nvmlDevice_t device, unsigned int id, const struct mock_gi_profile **profile)
{
    const struct mock_gpu *gpu = mock_gpu(device);
    if (gpu->mig_current < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *profile = mock_gi_profile(gpu, id, NULL);
    return *profile == NULL ? NVML_ERROR_INVALID_ARGUMENT : can_query(gpu);
}

nvmlReturn_t impl_nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int profileId,
                                                                nvmlGpuInstancePlacement_t *placements,
                                                                unsigned int *count)
{
    MOCK_PRIVILEGED();
    const struct mock_gi_profile *found;
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = by_id(device, profileId, &found);
    if (result != NVML_SUCCESS)
        return result;
    for (int64_t i = 0; placements != NULL && i < found->start_count; ++i)
        placements[i] = (nvmlGpuInstancePlacement_t){(unsigned int)found->starts[i], (unsigned int)found->size};
    *count = (unsigned int)found->start_count;
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int profileId,
                                                             nvmlGpuInstancePlacement_t *placements,
                                                             unsigned int *count)
{
    if (placements == NULL) /* the first version has no way to ask for the count alone */
        return NVML_ERROR_INVALID_ARGUMENT;
    return impl_nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, profileId, placements, count);
}

static bool alive(const struct mock_gi *instance)
{
    return __atomic_load_n(&instance->tag, __ATOMIC_ACQUIRE) != 0;
}

bool mock_fits(const struct mock_gpu *gpu, const struct mock_gi_profile *profile, int64_t start)
{
    for (unsigned int i = 0; i < MOCK_GI_IDS; ++i) {
        const struct mock_gi *other = &gpu->gis[i];
        if (alive(other) && start < other->start + other->size && other->start < start + profile->size)
            return false;
    }
    return true;
}

/* The pools that instances share out: engines, as many as the biggest profile has, and compute slices. */
enum { POOLS = 6 };

static void demand(const struct mock_gi_profile *profile, int64_t out[POOLS])
{
    const int64_t values[POOLS] = {profile->slices,  profile->copy, profile->decoder,
                                   profile->encoder, profile->jpeg, profile->ofa};
    memcpy(out, values, sizeof(values));
}

static void pools(const struct mock_gpu *gpu, int64_t out[POOLS])
{
    int64_t each[POOLS];
    memset(out, 0, sizeof(*out) * POOLS);
    for (unsigned int i = 0; i < MOCK_GI_PROFILES; ++i) {
        if (gpu->gi_profiles[i].id < 0)
            continue;
        demand(&gpu->gi_profiles[i], each);
        for (unsigned int pool = 0; pool < POOLS; ++pool)
            out[pool] = each[pool] > out[pool] ? each[pool] : out[pool];
    }
}

bool mock_has_room(const struct mock_gpu *gpu, const struct mock_gi_profile *profile, int64_t more)
{
    int64_t left[POOLS], each[POOLS], same = 0;
    pools(gpu, left);
    for (unsigned int i = 0; i < MOCK_GI_IDS; ++i) {
        if (!alive(&gpu->gis[i]))
            continue;
        const struct mock_gi_profile *other = &gpu->gi_profiles[gpu->gis[i].profile];
        same += other == profile;
        demand(other, each);
        for (unsigned int pool = 0; pool < POOLS; ++pool)
            left[pool] -= each[pool];
    }
    demand(profile, each);
    for (unsigned int pool = 0; pool < POOLS; ++pool)
        if (left[pool] < each[pool] * more)
            return false;
    return same + more <= profile->instances;
}

nvmlReturn_t impl_nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int profileId,
                                                            unsigned int *count)
{
    MOCK_PRIVILEGED();
    const struct mock_gpu *gpu = mock_gpu(device);
    const struct mock_gi_profile *found;
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (gpu->mig_current != 1)
        return NVML_ERROR_NOT_SUPPORTED;
    const nvmlReturn_t result = by_id(device, profileId, &found);
    if (result != NVML_SUCCESS)
        return result;
    /* the placements of one profile do not overlap each other on any board */
    unsigned int free_places = 0;
    for (int64_t i = 0; i < found->start_count; ++i)
        free_places += mock_fits(gpu, found, found->starts[i]);
    while (free_places > 0 && !mock_has_room(gpu, found, free_places))
        --free_places;
    *count = free_places;
    return NVML_SUCCESS;
}

/* NVML_COMPUTE_INSTANCE_PROFILE_*: the slices that each index stands for; the two revisions exist on no known board. */
unsigned int mock_ci_slices(unsigned int profile)
{
    static const unsigned int slices[NVML_COMPUTE_INSTANCE_PROFILE_COUNT] = {1, 2, 3, 4, 7, 8, 6, 0, 0};
    return profile < NVML_COMPUTE_INSTANCE_PROFILE_COUNT ? slices[profile] : 0;
}

/* Compute instances start at multiples of their size rounded up to a power of two; three slices only stand in an
 * instance of three or seven (nvidia-smi mig -lcip of the user guide). */
unsigned int mock_ci_starts(unsigned int slices, unsigned int wanted)
{
    unsigned int step = 1, starts = 0;
    if (wanted == 0 || wanted > slices || (wanted == 3 && slices != 3 && slices != 7) || (wanted > 4 && wanted != slices))
        return 0;
    while (step < wanted)
        step *= 2;
    for (unsigned int start = 0; start + wanted <= slices; start += step)
        starts |= 1U << start;
    return starts;
}

unsigned int mock_ci_multiprocessors(const struct mock_gpu *gpu, const struct mock_gi_profile *of, unsigned int slices)
{
    const struct mock_gi_profile *one = &gpu->gi_profiles[NVML_GPU_INSTANCE_PROFILE_1_SLICE];
    if ((int64_t)slices == of->slices)
        return (unsigned int)of->multiprocessors;
    return (unsigned int)(one->multiprocessors * (int64_t)slices);
}

static nvmlReturn_t ci_profile(nvmlGpuInstance_t handle, unsigned int profile, unsigned int engine,
                               struct mock_instance *of, nvmlComputeInstanceProfileInfo_t *info)
{
    if (profile >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT || engine >= NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT ||
        !mock_instance(handle, MOCK_GPU_INSTANCE, of))
        return NVML_ERROR_INVALID_ARGUMENT;
    const unsigned int slices = mock_ci_slices(profile);
    const unsigned int starts = mock_ci_starts((unsigned int)of->profile->slices, slices);
    if (starts == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *info = (nvmlComputeInstanceProfileInfo_t){
        .id = profile,
        .sliceCount = slices,
        .instanceCount = (unsigned int)__builtin_popcount(starts),
        .multiprocessorCount = mock_ci_multiprocessors(of->gpu, of->profile, slices),
        .sharedCopyEngineCount = (unsigned int)of->profile->copy,
        .sharedDecoderCount = (unsigned int)of->profile->decoder,
        .sharedEncoderCount = (unsigned int)of->profile->encoder,
        .sharedJpegCount = (unsigned int)of->profile->jpeg,
        .sharedOfaCount = (unsigned int)of->profile->ofa,
    };
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t gpuInstance, unsigned int profile,
                                                               unsigned int engProfile,
                                                               nvmlComputeInstanceProfileInfo_t *info)
{
    struct mock_instance of;
    return info == NULL ? NVML_ERROR_INVALID_ARGUMENT : ci_profile(gpuInstance, profile, engProfile, &of, info);
}

/* v2 is a version, the plain struct and the name; v3 adds capabilities at the end. */
nvmlReturn_t impl_nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t gpuInstance, unsigned int profile,
                                                                unsigned int engProfile,
                                                                nvmlComputeInstanceProfileInfo_v2_t *info)
{
    struct mock_instance of;
    nvmlComputeInstanceProfileInfo_t plain;
    if (info == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const bool third = info->version == MOCK_VERSION_OF(nvmlComputeInstanceProfileInfo_v3_t, 3);
    if ((!third && info->version != MOCK_VERSION_OF(nvmlComputeInstanceProfileInfo_v2_t, 2)) ||
        mock_refuses("nvmlGpuInstanceGetComputeInstanceProfileInfoV", (nvmlDevice_t)gpuInstance, third ? 3 : 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const nvmlReturn_t result = ci_profile(gpuInstance, profile, engProfile, &of, &plain);
    if (result != NVML_SUCCESS)
        return result;
    memcpy(&info->id, &plain, sizeof(plain));
    const bool whole = (int64_t)plain.sliceCount == of.profile->slices;
    give_name(&of.profile->name, whole ? 0 : plain.sliceCount, info->name);
    if (third)
        ((nvmlComputeInstanceProfileInfo_v3_t *)info)->capabilities =
            of.profile->gfx == 1 ? NVML_COMPUTE_INSTANCE_PROFILE_CAPS_GFX : 0;
    return NVML_SUCCESS;
}

static unsigned int taken_slices(const struct mock_gi *instance)
{
    unsigned int taken = 0;
    for (unsigned int i = 0; i < MOCK_CI_IDS; ++i)
        if (__atomic_load_n(&instance->cis[i].tag, __ATOMIC_ACQUIRE) != 0)
            taken |= ((1U << instance->cis[i].size) - 1U) << instance->cis[i].start;
    return taken;
}

static nvmlReturn_t ci_starts(nvmlGpuInstance_t handle, unsigned int id, struct mock_instance *of, unsigned int *starts)
{
    if (!mock_instance(handle, MOCK_GPU_INSTANCE, of))
        return NVML_ERROR_INVALID_ARGUMENT;
    *starts = mock_ci_starts((unsigned int)of->profile->slices, mock_ci_slices(id));
    return *starts == 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t gpuInstance,
                                                                     unsigned int profileId, unsigned int *count)
{
    MOCK_PRIVILEGED();
    struct mock_instance of;
    unsigned int starts;
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = ci_starts(gpuInstance, profileId, &of, &starts);
    if (result != NVML_SUCCESS)
        return result;
    const unsigned int taken = taken_slices(of.gi_record), slices = mock_ci_slices(profileId);
    *count = 0;
    for (unsigned int start = 0; start < MOCK_CI_IDS; ++start)
        *count += (starts >> start & 1U) != 0 && (taken & ((1U << slices) - 1U) << start) == 0;
    return NVML_SUCCESS;
}

nvmlReturn_t impl_nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t gpuInstance,
                                                                      unsigned int profileId,
                                                                      nvmlComputeInstancePlacement_t *placements,
                                                                      unsigned int *count)
{
    MOCK_PRIVILEGED();
    struct mock_instance of;
    unsigned int starts, found = 0;
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = ci_starts(gpuInstance, profileId, &of, &starts);
    if (result != NVML_SUCCESS)
        return result;
    for (unsigned int start = 0; start < MOCK_CI_IDS; ++start) {
        if ((starts >> start & 1U) == 0)
            continue;
        if (placements != NULL)
            placements[found] = (nvmlComputeInstancePlacement_t){start, mock_ci_slices(profileId)};
        ++found;
    }
    *count = found;
    return NVML_SUCCESS;
}
