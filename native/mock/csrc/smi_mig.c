/* nvidia-smi mig: profiles, placements, instances, in NVIDIA's tables and words. */
#include <stdlib.h>
#include <string.h>

#include "smi.h"

#define MAX_INSTANCES 16

struct wish {
    const struct smi_options *options;
    const char *profiles; /* of -cgi or -cci */
};

static nvmlReturn_t profile_at(nvmlDevice_t device, unsigned int index, nvmlGpuInstanceProfileInfo_v2_t *info)
{
    info->version = MOCK_VERSION_OF(nvmlGpuInstanceProfileInfo_v2_t, 2);
    return nvmlDeviceGetGpuInstanceProfileInfoV(device, index, info);
}

static nvmlReturn_t list_profiles(unsigned int index, nvmlDevice_t device, const void *argument)
{
    nvmlGpuInstanceProfileInfo_v2_t info;
    (void)argument;
    for (unsigned int i = 0; i < NVML_GPU_INSTANCE_PROFILE_COUNT; ++i) {
        unsigned int left = 0;
        if (profile_at(device, i, &info) != NVML_SUCCESS)
            continue;
        if (nvmlDeviceGetGpuInstanceRemainingCapacity(device, info.id, &left) != NVML_SUCCESS)
            left = 0;
        printf("| %3u  %-18s %3u     %u/%-2u     %6.2f      %-3s  %4u  %5u %5u   |\n", index, info.name, info.id, left,
               info.instanceCount, (double)info.memorySizeMB / 1024.0, info.isP2pSupported ? "Yes" : "No",
               info.multiprocessorCount, info.decoderCount, info.encoderCount);
        printf("| %57s %4u  %5u %5u   |\n", "", info.copyEngineCount, info.jpegCount, info.ofaCount);
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t profiles_table(const struct smi_options *options)
{
    static const char rule[] = "+-------------------------------------------------------------------------------+\n";
    printf("%s| GPU instance profiles:                                                        |\n"
           "| GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC  |\n"
           "|                                Free/Total   GiB              CE    JPEG  OFA  |\n"
           "|===============================================================================|\n", rule);
    const nvmlReturn_t result = smi_for_each(options, list_profiles, NULL);
    printf("%s", rule);
    return result;
}

static nvmlReturn_t list_placements(unsigned int index, nvmlDevice_t device, const void *argument)
{
    nvmlGpuInstanceProfileInfo_v2_t info;
    nvmlGpuInstancePlacement_t places[MOCK_MAX_STARTS];
    (void)argument;
    for (unsigned int i = 0; i < NVML_GPU_INSTANCE_PROFILE_COUNT; ++i) {
        unsigned int count = 0;
        if (profile_at(device, i, &info) != NVML_SUCCESS ||
            nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, info.id, places, &count) != NVML_SUCCESS || count == 0)
            continue;
        printf("GPU %2u Profile ID %2u Placement%s: {", index, info.id, count == 1 ? " " : "s");
        for (unsigned int j = 0; j < count; ++j)
            printf("%s%u", j == 0 ? "" : ",", places[j].start);
        printf("}:%u\n", places[0].size);
    }
    return NVML_SUCCESS;
}

/* Calls something for every GPU instance that -gi names, in the order of profiles. */
typedef nvmlReturn_t each_instance(unsigned int index, nvmlDevice_t device, nvmlGpuInstance_t instance,
                                   const nvmlGpuInstanceInfo_t *info, const char *profile, const struct wish *wish);

static nvmlReturn_t for_instances(unsigned int index, nvmlDevice_t device, const struct wish *wish, each_instance *call)
{
    nvmlReturn_t worst = NVML_SUCCESS;
    for (unsigned int i = 0; i < NVML_GPU_INSTANCE_PROFILE_COUNT; ++i) {
        nvmlGpuInstanceProfileInfo_v2_t profile;
        nvmlGpuInstance_t instances[MAX_INSTANCES];
        nvmlGpuInstanceInfo_t info;
        unsigned int count = 0;
        if (profile_at(device, i, &profile) != NVML_SUCCESS ||
            nvmlDeviceGetGpuInstances(device, profile.id, instances, &count) != NVML_SUCCESS)
            continue;
        for (unsigned int j = 0; j < count; ++j) {
            if (nvmlGpuInstanceGetInfo(instances[j], &info) != NVML_SUCCESS || !smi_listed(wish->options->gi, info.id))
                continue;
            const nvmlReturn_t result = call(index, device, instances[j], &info, profile.name, wish);
            worst = result != NVML_SUCCESS ? result : worst;
        }
    }
    return worst;
}

static nvmlReturn_t print_instance(unsigned int index, nvmlDevice_t device, nvmlGpuInstance_t instance,
                                   const nvmlGpuInstanceInfo_t *info, const char *profile, const struct wish *wish)
{
    (void)device;
    (void)instance;
    (void)wish;
    printf("| %3u  %-17s %3u       %3u         %2u:%-2u    |\n", index, profile, info->profileId, info->id,
           info->placement.start, info->placement.size);
    return NVML_SUCCESS;
}

static nvmlReturn_t list_instances(unsigned int index, nvmlDevice_t device, const void *argument)
{
    return for_instances(index, device, argument, print_instance);
}

static nvmlReturn_t instances_table(const struct wish *wish)
{
    static const char rule[] = "+-------------------------------------------------------+\n";
    printf("%s| GPU instances:                                        |\n"
           "| GPU   Name             Profile  Instance   Placement  |\n"
           "|                          ID       ID       Start:Size |\n"
           "|=======================================================|\n", rule);
    const nvmlReturn_t result = smi_for_each(wish->options, list_instances, wish);
    printf("%s", rule);
    return result;
}

static nvmlReturn_t ci_profile(nvmlGpuInstance_t instance, unsigned int index, nvmlComputeInstanceProfileInfo_v2_t *info)
{
    info->version = MOCK_VERSION_OF(nvmlComputeInstanceProfileInfo_v2_t, 2);
    return nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, index, 0, info);
}

static unsigned int ci_instances(nvmlGpuInstance_t instance, unsigned int profile, nvmlComputeInstance_t out[MAX_INSTANCES])
{
    unsigned int count = 0;
    return nvmlGpuInstanceGetComputeInstances(instance, profile, out, &count) == NVML_SUCCESS ? count : 0;
}

static nvmlReturn_t print_compute(unsigned int index, nvmlDevice_t device, nvmlGpuInstance_t instance,
                                  const nvmlGpuInstanceInfo_t *info, const char *profile, const struct wish *wish)
{
    (void)device;
    (void)profile;
    (void)wish;
    for (unsigned int i = 0; i < NVML_COMPUTE_INSTANCE_PROFILE_COUNT; ++i) {
        nvmlComputeInstanceProfileInfo_v2_t of;
        nvmlComputeInstance_t found[MAX_INSTANCES];
        nvmlComputeInstanceInfo_t ci;
        if (ci_profile(instance, i, &of) != NVML_SUCCESS)
            continue;
        const unsigned int count = ci_instances(instance, of.id, found);
        for (unsigned int j = 0; j < count; ++j)
            if (nvmlComputeInstanceGetInfo_v2(found[j], &ci) == NVML_SUCCESS)
                printf("| %3u    %3u       %-18s %2u         %2u          %u:%u     |\n", index, info->id, of.name, of.id,
                       ci.id, ci.placement.start, ci.placement.size);
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t list_compute(unsigned int index, nvmlDevice_t device, const void *argument)
{
    return for_instances(index, device, argument, print_compute);
}

static nvmlReturn_t compute_table(const struct wish *wish)
{
    static const char rule[] = "+--------------------------------------------------------------------+\n";
    printf("%s| Compute instances:                                                 |\n"
           "| GPU     GPU       Name             Profile   Instance   Placement  |\n"
           "|       Instance                       ID        ID       Start:Size |\n"
           "|         ID                                                         |\n"
           "|====================================================================|\n", rule);
    const nvmlReturn_t result = smi_for_each(wish->options, list_compute, wish);
    printf("%s", rule);
    return result;
}

/* "19", "1g.10gb" or "MIG 1g.10gb", and ":start" where the place matters. */
static bool is_profile(const char *word, size_t length, unsigned int id, const char *name)
{
    char *end;
    const unsigned long number = strtoul(word, &end, 10);
    const char *bare = strncmp(name, "MIG ", 4) == 0 ? name + 4 : name;
    if (end == word + length)
        return number == id;
    if (length > 4 && strncmp(word, "MIG ", 4) == 0) {
        word += 4;
        length -= 4;
    }
    return strlen(bare) == length && strncmp(bare, word, length) == 0;
}

static nvmlReturn_t make_compute(unsigned int index, nvmlGpuInstance_t instance, unsigned int gi, const char *word,
                                 size_t length)
{
    for (unsigned int i = 0; i < NVML_COMPUTE_INSTANCE_PROFILE_COUNT; ++i) {
        nvmlComputeInstanceProfileInfo_v2_t of;
        nvmlComputeInstanceInfo_t info;
        nvmlComputeInstance_t made;
        if (ci_profile(instance, i, &of) != NVML_SUCCESS)
            continue;
        const bool whole = strncmp(of.name, "MIG ", 4) == 0 && strstr(of.name, "c.") == NULL;
        if (word == NULL ? !whole : !is_profile(word, length, of.id, of.name))
            continue;
        nvmlReturn_t result = nvmlGpuInstanceCreateComputeInstance(instance, of.id, &made);
        if (result == NVML_SUCCESS)
            result = nvmlComputeInstanceGetInfo_v2(made, &info);
        if (result != NVML_SUCCESS) {
            printf("Unable to create a compute instance on GPU %2u GPU instance ID %2u using profile %u: %s\n", index, gi,
                   of.id, nvmlErrorString(result));
            return result;
        }
        printf("Successfully created compute instance ID %2u on GPU %2u GPU instance ID %2u using profile %s (ID %2u)\n",
               info.id, index, gi, of.name, of.id);
        return NVML_SUCCESS;
    }
    printf("Unable to find a compute instance profile on GPU %2u GPU instance ID %2u: Invalid Argument\n", index, gi);
    return NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t make_instance(unsigned int index, nvmlDevice_t device, const char *word, size_t length,
                                  const struct wish *wish)
{
    const char *colon = memchr(word, ':', length);
    const size_t name = colon != NULL ? (size_t)(colon - word) : length;
    for (unsigned int i = 0; i < NVML_GPU_INSTANCE_PROFILE_COUNT; ++i) {
        nvmlGpuInstanceProfileInfo_v2_t of;
        nvmlGpuInstancePlacement_t place[MOCK_MAX_STARTS];
        nvmlGpuInstanceInfo_t info;
        nvmlGpuInstance_t made;
        unsigned int count = 0;
        if (profile_at(device, i, &of) != NVML_SUCCESS || !is_profile(word, name, of.id, of.name))
            continue;
        nvmlReturn_t result = nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, of.id, place, &count);
        if (result == NVML_SUCCESS && colon != NULL) {
            place[0].start = (unsigned int)strtoul(colon + 1, NULL, 10);
            result = nvmlDeviceCreateGpuInstanceWithPlacement(device, of.id, &place[0], &made);
        } else if (result == NVML_SUCCESS) {
            result = nvmlDeviceCreateGpuInstance(device, of.id, &made);
        }
        if (result == NVML_SUCCESS)
            result = nvmlGpuInstanceGetInfo(made, &info);
        if (result != NVML_SUCCESS) {
            printf("Unable to create a GPU instance on GPU %2u using profile %u: %s\n", index, of.id,
                   nvmlErrorString(result));
            return result;
        }
        printf("Successfully created GPU instance ID %2u on GPU %2u using profile %s (ID %2u)\n", info.id, index, of.name,
               of.id);
        return wish->options->make_default ? make_compute(index, made, info.id, NULL, 0) : NVML_SUCCESS;
    }
    printf("Unable to find the GPU instance profile %.*s on GPU %2u: Invalid Argument\n", (int)length, word, index);
    return NVML_ERROR_INVALID_ARGUMENT;
}

/* The first failure ends the list, as with NVIDIA's. */
static nvmlReturn_t make_instances(unsigned int index, nvmlDevice_t device, const void *argument)
{
    const struct wish *wish = argument;
    nvmlReturn_t result = NVML_SUCCESS;
    for (const char *word = wish->profiles; result == NVML_SUCCESS && *word != '\0';) {
        const size_t length = strcspn(word, ",");
        result = make_instance(index, device, word, length, wish);
        word += length + (word[length] == ',');
    }
    return result;
}

static nvmlReturn_t make_computes_in(unsigned int index, nvmlDevice_t device, nvmlGpuInstance_t instance,
                                     const nvmlGpuInstanceInfo_t *info, const char *profile, const struct wish *wish)
{
    nvmlReturn_t result = NVML_SUCCESS;
    (void)device;
    (void)profile;
    if (wish->profiles == NULL)
        return make_compute(index, instance, info->id, NULL, 0);
    for (const char *word = wish->profiles; result == NVML_SUCCESS && *word != '\0';) {
        const size_t length = strcspn(word, ",");
        result = make_compute(index, instance, info->id, word, length);
        word += length + (word[length] == ',');
    }
    return result;
}

static nvmlReturn_t make_computes(unsigned int index, nvmlDevice_t device, const void *argument)
{
    return for_instances(index, device, argument, make_computes_in);
}

static nvmlReturn_t destroy_computes_in(unsigned int index, nvmlDevice_t device, nvmlGpuInstance_t instance,
                                        const nvmlGpuInstanceInfo_t *info, const char *profile, const struct wish *wish)
{
    nvmlReturn_t worst = NVML_SUCCESS;
    (void)device;
    (void)profile;
    for (unsigned int id = 0; id < MOCK_CI_IDS; ++id) {
        nvmlComputeInstance_t found;
        if (!smi_listed(wish->options->ci, id) ||
            nvmlGpuInstanceGetComputeInstanceById(instance, id, &found) != NVML_SUCCESS)
            continue;
        const nvmlReturn_t result = nvmlComputeInstanceDestroy(found);
        if (result == NVML_SUCCESS)
            printf("Successfully destroyed compute instance ID %2u from GPU %2u GPU instance ID %2u\n", id, index, info->id);
        else
            printf("Unable to destroy compute instance ID %2u from GPU %2u GPU instance ID %2u: %s\n", id, index, info->id,
                   nvmlErrorString(worst = result));
    }
    return worst;
}

static nvmlReturn_t destroy_computes(unsigned int index, nvmlDevice_t device, const void *argument)
{
    return for_instances(index, device, argument, destroy_computes_in);
}

static nvmlReturn_t destroy_instance(unsigned int index, nvmlDevice_t device, nvmlGpuInstance_t instance,
                                     const nvmlGpuInstanceInfo_t *info, const char *profile, const struct wish *wish)
{
    (void)device;
    (void)profile;
    (void)wish;
    const nvmlReturn_t result = nvmlGpuInstanceDestroy(instance);
    if (result == NVML_SUCCESS)
        printf("Successfully destroyed GPU instance ID %2u from GPU %2u\n", info->id, index);
    else
        printf("Unable to destroy GPU instance ID %2u from GPU %2u: %s\n", info->id, index, nvmlErrorString(result));
    return result;
}

static nvmlReturn_t destroy_instances(unsigned int index, nvmlDevice_t device, const void *argument)
{
    return for_instances(index, device, argument, destroy_instance);
}

nvmlReturn_t smi_mig(int argc, char **argv, const struct smi_options *options, bool *understood)
{
    struct wish wish = {options, NULL};
    const char *verb = argc > 0 ? argv[0] : "";
    const bool takes_profiles = strcmp(verb, "-cgi") == 0 || strcmp(verb, "-cci") == 0;
    if (takes_profiles && argc > 1 && argv[1][0] != '-')
        wish.profiles = argv[1];
    *understood = argc == 1 || (argc == 2 && wish.profiles != NULL);
    if (!*understood)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strcmp(verb, "-lgip") == 0)
        return profiles_table(options);
    if (strcmp(verb, "-lgipp") == 0)
        return smi_for_each(options, list_placements, NULL);
    if (strcmp(verb, "-lgi") == 0)
        return instances_table(&wish);
    if (strcmp(verb, "-lci") == 0)
        return compute_table(&wish);
    if (strcmp(verb, "-cgi") == 0 && wish.profiles != NULL)
        return smi_for_each(options, make_instances, &wish);
    if (strcmp(verb, "-cci") == 0)
        return smi_for_each(options, make_computes, &wish);
    if (strcmp(verb, "-dci") == 0)
        return smi_for_each(options, destroy_computes, &wish);
    if (strcmp(verb, "-dgi") == 0)
        return smi_for_each(options, destroy_instances, &wish);
    *understood = false;
    return NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t set_mode(unsigned int index, nvmlDevice_t device, const void *argument)
{
    const unsigned int mode = *(const unsigned int *)argument;
    nvmlReturn_t activation = NVML_SUCCESS;
    nvmlPciInfo_t pci = {.busId = "?"};
    (void)index;
    if (nvmlDeviceGetPciInfo_v3(device, &pci) != NVML_SUCCESS)
        pci.busId[0] = '\0';
    const nvmlReturn_t result = nvmlDeviceSetMigMode(device, mode, &activation);
    if (result != NVML_SUCCESS)
        printf("Unable to %s MIG Mode for GPU %s: %s\n", mode ? "enable" : "disable", pci.busId, nvmlErrorString(result));
    else if (activation != NVML_SUCCESS)
        printf("Warning: MIG mode is in pending %s state for GPU %s:%s\n", mode ? "enable" : "disable", pci.busId,
               nvmlErrorString(activation));
    else
        printf("%s MIG Mode for GPU %s\n", mode ? "Enabled" : "Disabled", pci.busId);
    return result;
}

nvmlReturn_t smi_mig_mode(const struct smi_options *options, unsigned int mode)
{
    const nvmlReturn_t result = smi_for_each(options, set_mode, &mode);
    if (result == NVML_SUCCESS)
        printf("All done.\n");
    return result;
}

void smi_list_mig(nvmlDevice_t device)
{
    unsigned int most = 0;
    if (nvmlDeviceGetMaxMigDeviceCount(device, &most) != NVML_SUCCESS)
        return;
    for (unsigned int index = 0; index < most; ++index) {
        nvmlDevice_t mig;
        char name[TEXT_ROOM], uuid[TEXT_ROOM];
        if (nvmlDeviceGetMigDeviceHandleByIndex(device, index, &mig) != NVML_SUCCESS ||
            nvmlDeviceGetName(mig, name, sizeof(name)) != NVML_SUCCESS)
            continue;
        const char *profile = strstr(name, " MIG ");
        printf("  MIG %-11s Device %2u: (UUID: %s)\n", profile != NULL ? profile + 5 : name, index,
               smi_text(uuid, nvmlDeviceGetUUID(mig, uuid, sizeof(uuid))));
    }
}
