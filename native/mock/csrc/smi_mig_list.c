/* The tables of nvidia-smi mig, column for column as people have published them: from R575 on names have two columns more
 * (an A100 with 570 and an RTX PRO 6000 with 610 are the captures on either side; which release in between is inferred).
 */
#include <stdlib.h>
#include <string.h>

#include "smi_mig.h"

#define FIRST_WIDE_DRIVER 575
#define NARROW_NAME 16

/* How wide a profile's name is in the tables of this driver. */
static int name_width(void)
{
    char driver[TEXT_ROOM];
    if (nvmlSystemGetDriverVersion(driver, sizeof(driver)) != NVML_SUCCESS)
        return NARROW_NAME;
    return strtoul(driver, NULL, 10) >= FIRST_WIDE_DRIVER ? NARROW_NAME + 2 : NARROW_NAME;
}

static int by_size(const void *left, const void *right)
{
    const nvmlGpuInstanceProfileInfo_v2_t *a = left, *b = right;
    if (a->sliceCount != b->sliceCount)
        return a->sliceCount < b->sliceCount ? -1 : 1;
    if (a->memorySizeMB != b->memorySizeMB)
        return a->memorySizeMB < b->memorySizeMB ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

unsigned int smi_profiles(nvmlDevice_t device, nvmlGpuInstanceProfileInfo_v2_t out[NVML_GPU_INSTANCE_PROFILE_COUNT])
{
    unsigned int count = 0;
    for (unsigned int i = 0; i < NVML_GPU_INSTANCE_PROFILE_COUNT; ++i) {
        out[count].version = MOCK_VERSION_OF(nvmlGpuInstanceProfileInfo_v2_t, 2);
        count += nvmlDeviceGetGpuInstanceProfileInfoV(device, i, &out[count]) == NVML_SUCCESS;
    }
    qsort(out, count, sizeof(*out), by_size);
    return count;
}

nvmlReturn_t smi_ci_profile(nvmlGpuInstance_t instance, unsigned int index, nvmlComputeInstanceProfileInfo_v2_t *info)
{
    info->version = MOCK_VERSION_OF(nvmlComputeInstanceProfileInfo_v2_t, 2);
    return nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, index, 0, info);
}

nvmlReturn_t smi_for_instances(unsigned int index, nvmlDevice_t device, const struct wish *wish, each_instance *call)
{
    nvmlGpuInstanceProfileInfo_v2_t profiles[NVML_GPU_INSTANCE_PROFILE_COUNT];
    nvmlReturn_t worst = NVML_SUCCESS;
    const unsigned int known = smi_profiles(device, profiles);
    for (unsigned int i = 0; i < known; ++i) {
        nvmlGpuInstance_t instances[MAX_INSTANCES];
        nvmlGpuInstanceInfo_t info;
        unsigned int count = 0;
        if (nvmlDeviceGetGpuInstances(device, profiles[i].id, instances, &count) != NVML_SUCCESS)
            continue;
        for (unsigned int j = 0; j < count; ++j) {
            if (nvmlGpuInstanceGetInfo(instances[j], &info) != NVML_SUCCESS || !smi_listed(wish->options->gi, info.id))
                continue;
            const nvmlReturn_t result = call(index, device, instances[j], &info, profiles[i].name, wish);
            worst = result != NVML_SUCCESS ? result : worst;
        }
    }
    return worst;
}

/* A table that has been begun: its heading is printed with its first row, and a rule after each row. */
static struct {
    const char *title, *const *heading; /* lines whose "%*s" is where names are wider */
    unsigned int rows;
    int width, name;
} table;

static void rule(char dash)
{
    const char corner = dash == '-' ? '+' : '|';
    putchar(corner);
    for (int i = 0; i < table.width - 2; ++i)
        putchar(dash);
    printf("%c\n", corner);
}

static void begin(const char *title, const char *const *heading, int width)
{
    const int name = name_width();
    table.title = title;
    table.heading = heading;
    table.rows = 0;
    table.name = name;
    table.width = width + name - NARROW_NAME;
}

static void begin_row(void)
{
    if (table.rows++ > 0)
        return;
    rule('-');
    printf("| %-*s|\n", table.width - 3, table.title);
    for (const char *const *line = table.heading; *line != NULL; ++line) {
        const char *gap = strchr(*line, '^');
        printf("%.*s%*s%s\n", (int)(gap - *line), *line, table.name - NARROW_NAME, "", gap + 1);
    }
    rule('=');
}

static nvmlReturn_t list_profiles(unsigned int index, nvmlDevice_t device, const void *argument)
{
    nvmlGpuInstanceProfileInfo_v2_t found[NVML_GPU_INSTANCE_PROFILE_COUNT];
    const unsigned int count = smi_profiles(device, found);
    (void)argument;
    for (unsigned int i = 0; i < count; ++i) {
        const nvmlGpuInstanceProfileInfo_v2_t *of = &found[i];
        unsigned int left = 0;
        if (nvmlDeviceGetGpuInstanceRemainingCapacity(device, of->id, &left) != NVML_SUCCESS)
            left = 0;
        begin_row();
        printf("| %3u  %-*s %3u     %u/%-9u%-11.2f%-7s%-7u%-6u%-4u|\n", index, table.name, of->name, of->id, left,
               of->instanceCount, (double)of->memorySizeMB / 1024.0, of->isP2pSupported ? "Yes" : "No",
               of->multiprocessorCount, of->decoderCount, of->encoderCount);
        printf("|%*s%-6u%-6u%-4u|\n", 45 + table.name, "", of->copyEngineCount, of->jpegCount, of->ofaCount);
        rule('-');
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t list_placements(unsigned int index, nvmlDevice_t device, const void *argument)
{
    nvmlGpuInstanceProfileInfo_v2_t found[NVML_GPU_INSTANCE_PROFILE_COUNT];
    nvmlGpuInstancePlacement_t places[MOCK_MAX_STARTS];
    const unsigned int known = smi_profiles(device, found);
    (void)argument;
    for (unsigned int i = 0; i < known; ++i) {
        unsigned int count = 0;
        if (nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, found[i].id, places, &count) != NVML_SUCCESS || count == 0)
            continue;
        ++table.rows;
        printf("GPU %2u Profile ID %2u Placement%s: {", index, found[i].id, count == 1 ? " " : "s");
        for (unsigned int j = 0; j < count; ++j)
            printf("%s%u", j == 0 ? "" : ",", places[j].start);
        printf("}:%u\n", places[0].size);
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t print_instance(unsigned int index, nvmlDevice_t device, nvmlGpuInstance_t instance,
                                   const nvmlGpuInstanceInfo_t *info, const char *profile, const struct wish *wish)
{
    (void)device;
    (void)instance;
    (void)wish;
    begin_row();
    printf("| %3u  %-*s%6u%9u          %u:%-6u|\n", index, table.name, profile, info->profileId, info->id,
           info->placement.start, info->placement.size);
    rule('-');
    return NVML_SUCCESS;
}

static nvmlReturn_t list_instances(unsigned int index, nvmlDevice_t device, const void *argument)
{
    return smi_for_instances(index, device, argument, print_instance);
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
        unsigned int count = 0;
        if (smi_ci_profile(instance, i, &of) != NVML_SUCCESS ||
            nvmlGpuInstanceGetComputeInstances(instance, of.id, found, &count) != NVML_SUCCESS)
            continue;
        for (unsigned int j = 0; j < count; ++j) {
            if (nvmlComputeInstanceGetInfo_v2(found[j], &ci) != NVML_SUCCESS)
                continue;
            begin_row();
            printf("| %3u%7u       %-*s%6u%10u          %u:%-6u|\n", index, info->id, table.name, of.name, of.id, ci.id,
                   ci.placement.start, ci.placement.size);
            rule('-');
        }
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t list_compute(unsigned int index, nvmlDevice_t device, const void *argument)
{
    return smi_for_instances(index, device, argument, print_compute);
}

/* A star marks the profile of a compute instance that takes the GPU instance whole. */
static nvmlReturn_t print_compute_profiles(unsigned int index, nvmlDevice_t device, nvmlGpuInstance_t instance,
                                           const nvmlGpuInstanceInfo_t *info, const char *profile,
                                           const struct wish *wish)
{
    (void)device;
    (void)wish;
    for (unsigned int i = 0; i < NVML_COMPUTE_INSTANCE_PROFILE_COUNT; ++i) {
        nvmlComputeInstanceProfileInfo_v2_t of;
        unsigned int left = 0;
        if (smi_ci_profile(instance, i, &of) != NVML_SUCCESS)
            continue;
        if (nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, of.id, &left) != NVML_SUCCESS)
            left = 0;
        begin_row();
        printf("| %3u%7u       %-*s%6u%c     %u/%-12u%-10u%-6u%-6u%-4u|\n", index, info->id, table.name, of.name, of.id,
               strcmp(of.name, profile) == 0 ? '*' : ' ', left, of.instanceCount, of.multiprocessorCount,
               of.sharedDecoderCount, of.sharedEncoderCount, of.sharedOfaCount);
        printf("|%*s%-6u%-10u|\n", 54 + table.name, "", of.sharedCopyEngineCount, of.sharedJpegCount);
        rule('-');
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t list_compute_profiles(unsigned int index, nvmlDevice_t device, const void *argument)
{
    return smi_for_instances(index, device, argument, print_compute_profiles);
}

static nvmlReturn_t note_mig(unsigned int index, nvmlDevice_t device, const void *argument)
{
    unsigned int current = 0, pending = 0;
    (void)index;
    if (nvmlDeviceGetMigMode(device, &current, &pending) == NVML_SUCCESS && current == 1)
        ++**(unsigned int *const *)argument;
    return NVML_SUCCESS;
}

static bool any_mig(const struct smi_options *options)
{
    unsigned int divided = 0, *const count = &divided;
    return smi_for_each(options, note_mig, &count) != NVML_SUCCESS || divided > 0;
}

static const char *const profile_heading[] = {
    "| GPU   Name             ^ID    Instances   Memory     P2P    SM    DEC   ENC  |",
    "|                        ^      Free/Total   GiB              CE    JPEG  OFA  |", NULL};
static const char *const instance_heading[] = {"| GPU   Name             ^Profile  Instance   Placement  |",
                                               "|                        ^  ID       ID       Start:Size |", NULL};
static const char *const compute_heading[] = {
    "| GPU     GPU       Name             ^Profile   Instance   Placement  |",
    "|       Instance                     ^  ID        ID       Start:Size |",
    "|         ID                         ^                                |", NULL};
static const char *const compute_profile_heading[] = {
    "| GPU     GPU       Name             ^Profile  Instances   Exclusive       Shared       |",
    "|       Instance                     ^  ID     Free/Total     SM       DEC   ENC   OFA  |",
    "|         ID                         ^                                 CE    JPEG       |", NULL};

static const struct {
    const char *verb, *title;
    const char *const *heading;
    int width;
    smi_each *list;
    const char *nothing;
} lists[] = {
    {"-lgip", "GPU instance profiles:", profile_heading, 79, list_profiles, "No MIG-supported devices found."},
    {"-lgipp", "", NULL, 0, list_placements, "No MIG-supported devices found."},
    {"-lgi", "GPU instances:", instance_heading, 57, list_instances, "No GPU instances found: Not Found"},
    {"-lci", "Compute instances:", compute_heading, 70, list_compute, "No compute instances found: Not Found"},
    {"-lcip", "Compute instance profiles:", compute_profile_heading, 88, list_compute_profiles,
     "No GPU instances found: Not Found"},
};

bool smi_mig_list(const char *verb, const struct wish *wish, nvmlReturn_t *result)
{
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); ++i) {
        if (strcmp(verb, lists[i].verb) != 0)
            continue;
        const bool about_instances = strcmp(verb, "-lgip") != 0 && strcmp(verb, "-lgipp") != 0;
        begin(lists[i].title, lists[i].heading, lists[i].width);
        *result = smi_for_each(wish->options, lists[i].list, wish);
        if (table.rows == 0 && *result == NVML_SUCCESS) {
            printf("%s\n", about_instances && !any_mig(wish->options) ? "No MIG-enabled devices found." : lists[i].nothing);
            *result = NVML_ERROR_NOT_FOUND;
        }
        return true;
    }
    return false;
}
