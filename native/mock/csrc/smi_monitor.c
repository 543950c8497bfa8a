/* nvidia-smi dmon: a line a GPU and a second, in columns of seven, with the groups p, u, c, m, e and t of -s. */
#include <stdlib.h>
#include <string.h>

#include "smi.h"

#define MAX_COLUMNS 24

/* What is in a column: a field of --query-gpu, "-" for what no mock board has, or a number that never changes. */
static const struct column {
    char group;
    const char *name, *unit, *field;
} columns[] = {
    {'p', "pwr", "W", "power.draw"},
    {'p', "gtemp", "C", "temperature.gpu"},
    {'p', "mtemp", "C", "-"},
    {'u', "sm", "%", "utilization.gpu"},
    {'u', "mem", "%", "utilization.memory"},
    {'u', "enc", "%", "utilization.encoder"},
    {'u', "dec", "%", "utilization.decoder"},
    {'u', "jpg", "%", "0"},
    {'u', "ofa", "%", "0"},
    {'c', "mclk", "MHz", "clocks.mem"},
    {'c', "pclk", "MHz", "clocks.gr"},
    {'m', "fb", "MB", "memory.used"},
    {'m', "bar1", "MB", "0"},
    {'m', "ccpm", "MB", "0"},
    {'e', "sbecc", "errs", "ecc.errors.corrected.volatile.total"},
    {'e', "dbecc", "errs", "ecc.errors.uncorrected.volatile.total"},
    {'e', "pci", "errs", "0"},
    {'t', "rxpci", "MB/s", "0"},
    {'t', "txpci", "MB/s", "0"},
};

struct watch {
    const struct column *shown[MAX_COLUMNS];
    unsigned int count;
};

static void choose(struct watch *watch, const char *groups)
{
    for (; *groups != '\0'; ++groups)
        for (size_t i = 0; i < sizeof(columns) / sizeof(*columns); ++i)
            if (columns[i].group == *groups && watch->count < MAX_COLUMNS)
                watch->shown[watch->count++] = &columns[i];
}

static void heading(const struct watch *watch)
{
    printf("# gpu");
    for (unsigned int i = 0; i < watch->count; ++i)
        printf("%7s", watch->shown[i]->name);
    printf(" \n# Idx");
    for (unsigned int i = 0; i < watch->count; ++i)
        printf("%7s", watch->shown[i]->unit);
    printf(" \n");
}

static nvmlReturn_t line(unsigned int index, nvmlDevice_t device, const void *argument)
{
    const struct watch *watch = argument;
    printf("%5u", index);
    for (unsigned int i = 0; i < watch->count; ++i) {
        char room[TEXT_ROOM];
        const char *field = watch->shown[i]->field, *unit;
        if (!smi_field(field, index, device, room, &unit))
            snprintf(room, sizeof(room), "%s", field);
        room[strcspn(room, ".")] = '\0'; /* whole numbers only */
        printf("%7s", strncmp(room, "[", 1) == 0 ? "-" : room);
    }
    printf(" \n");
    return NVML_SUCCESS;
}

static bool positive(const char *text, long most, long *out)
{
    char *end;
    *out = strtol(text, &end, 10);
    return end != text && *end == '\0' && *out >= 1 && *out <= most;
}

nvmlReturn_t smi_monitor(int argc, char **argv, const struct smi_options *options, bool *understood)
{
    struct watch watch = {.count = 0};
    const char *groups = "puc";
    long rounds = 0, delay_s = 1;
    *understood = argc % 2 == 0;
    for (int i = 0; i + 1 < argc && *understood; i += 2) {
        if (strcmp(argv[i], "-s") == 0)
            groups = argv[i + 1];
        else if (strcmp(argv[i], "-c") == 0)
            *understood = positive(argv[i + 1], 1000000, &rounds);
        else
            *understood = strcmp(argv[i], "-d") == 0 && positive(argv[i + 1], 1000, &delay_s);
    }
    *understood = *understood && groups[strspn(groups, "pucmet")] == '\0' && *groups != '\0';
    if (!*understood)
        return NVML_ERROR_INVALID_ARGUMENT;
    choose(&watch, groups);
    heading(&watch);
    nvmlReturn_t result = NVML_SUCCESS;
    for (long round = 0; result == NVML_SUCCESS && (rounds == 0 || round < rounds); ++round) {
        if (round > 0)
            mock_pause(delay_s * 1000);
        result = smi_for_each(options, line, &watch);
        if (fflush(stdout) != 0)
            return NVML_ERROR_OPERATING_SYSTEM; /* nobody reads any more */
    }
    return result;
}
