/* nvidia-smi without arguments: the frame that everybody knows, in the columns of drivers 550 to 595. */
#include <string.h>
#include <time.h>

#include "smi.h"

static const char wide_rule[] = "+-----------------------------------------------------------------------------------------+";
static const char gpu_rule[] = "+-----------------------------------------+------------------------+----------------------+";
static const char mig_rule[] = "+------------------+----------------------------------+-----------+-----------------------+";

/* The value of a --query-gpu field, its fraction cut off, with a unit; N/A where there is none. */
static const char *field(const char *name, unsigned int index, nvmlDevice_t device, const char *unit, char room[TEXT_ROOM])
{
    const char *own;
    if (!smi_field(name, index, device, room, &own) || strcmp(room, "[N/A]") == 0) {
        snprintf(room, TEXT_ROOM, "N/A");
        return room;
    }
    room[strcspn(room, ".")] = '\0';
    const size_t length = strlen(room);
    snprintf(room + length, TEXT_ROOM - length, "%s", unit);
    return room;
}

static const char *on_off(const char *name, unsigned int index, nvmlDevice_t device, char room[TEXT_ROOM])
{
    field(name, index, device, "", room);
    return strcmp(room, "Enabled") == 0 ? "On" : strcmp(room, "Disabled") == 0 ? "Off" : room;
}

static const char *compute_mode(nvmlDevice_t device)
{
    static const char *const words[] = {"Default", "E. Thread", "Prohibited", "E. Process"};
    nvmlComputeMode_t mode;
    return nvmlDeviceGetComputeMode(device, &mode) == NVML_SUCCESS && (unsigned int)mode < 4 ? words[mode] : "N/A";
}

static nvmlReturn_t show_gpu(unsigned int index, nvmlDevice_t device, const void *argument)
{
    char name[TEXT_ROOM], room[7][TEXT_ROOM];
    nvmlPciInfo_t pci = {0};
    (void)argument;
    printf("| %3u  %-28.28s%6s | %18s %3s | %20s |\n", index,
           smi_text(name, nvmlDeviceGetName(device, name, sizeof(name))),
           on_off("persistence_mode", index, device, room[0]), smi_bus_id(device, &pci), "Off",
           field("ecc.errors.uncorrected.volatile.total", index, device, "", room[1]));
    printf("| %3s%6s    %-2s%16s / %5s | %10s / %9s | %7s   %10s |\n", field("fan.speed", index, device, "%", room[0]),
           field("temperature.gpu", index, device, "C", room[1]), field("pstate", index, device, "", room[2]),
           field("power.draw", index, device, "W", room[3]), field("power.limit", index, device, "W", room[4]),
           field("memory.used", index, device, "MiB", room[5]), field("memory.total", index, device, "MiB", name),
           field("utilization.gpu", index, device, "%", room[6]), compute_mode(device));
    printf("| %39s | %22s | %20s |\n%s\n", "", "", field("mig.mode.current", index, device, "", room[0]), gpu_rule);
    return NVML_SUCCESS;
}

static void show_mig_device(unsigned int gpu, unsigned int number, nvmlDevice_t device)
{
    nvmlDeviceAttributes_t has = {0};
    nvmlMemory_t memory = {0};
    unsigned int gi = 0, ci = 0;
    char used[TEXT_ROOM], total[TEXT_ROOM];
    if (nvmlDeviceGetGpuInstanceId(device, &gi) != NVML_SUCCESS || nvmlDeviceGetComputeInstanceId(device, &ci) != NVML_SUCCESS ||
        nvmlDeviceGetAttributes_v2(device, &has) != NVML_SUCCESS ||
        nvmlDeviceGetMemoryInfo(device, &memory) != NVML_SUCCESS)
        return; /* it went while it was looked at */
    printf("| %2u  %3u %3u %3u  | %17s / %11s  | %-6u%3u | %2u %3u  %3u  %3u  %3u |\n", gpu, gi, ci, number,
           smi_number(used, NVML_SUCCESS, memory.used >> 20U, "MiB"),
           smi_number(total, NVML_SUCCESS, memory.total >> 20U, "MiB"), has.multiprocessorCount, 0,
           has.sharedCopyEngineCount, has.sharedEncoderCount, has.sharedDecoderCount, has.sharedOfaCount,
           has.sharedJpegCount);
    printf("%s\n", mig_rule);
}

/* The heading comes with the first MIG device. */
static nvmlReturn_t show_mig(unsigned int index, nvmlDevice_t device, const void *argument)
{
    bool *const begun = *(bool *const *)argument;
    unsigned int most = 0;
    nvmlDevice_t mig;
    if (nvmlDeviceGetMaxMigDeviceCount(device, &most) != NVML_SUCCESS)
        return NVML_SUCCESS;
    for (unsigned int number = 0; number < most; ++number) {
        if (nvmlDeviceGetMigDeviceHandleByIndex(device, number, &mig) != NVML_SUCCESS)
            continue;
        if (!*begun)
            printf("\n%s\n| %-87s |\n%s\n"
                   "| GPU  GI  CI  MIG |                     Memory-Usage |        Vol|        Shared         |\n"
                   "|      ID  ID  Dev |                                  | SM     Unc| CE ENC  DEC  OFA  JPG |\n"
                   "|                  |                                  |        ECC|                       |\n"
                   "|==================+==================================+===========+=======================|\n",
                   wide_rule, "MIG devices:", mig_rule);
        *begun = true;
        show_mig_device(index, number, mig);
    }
    return NVML_SUCCESS;
}

struct list {
    const char *type;
    nvmlReturn_t (*get)(nvmlDevice_t, unsigned int *, nvmlProcessInfo_t *);
};

static nvmlReturn_t show_processes(unsigned int index, nvmlDevice_t device, const void *argument)
{
    static const struct list lists[] = {{"C", nvmlDeviceGetComputeRunningProcesses_v3},
                                        {"G", nvmlDeviceGetGraphicsRunningProcesses_v3},
                                        {"M+C", nvmlDeviceGetMPSComputeRunningProcesses_v3}};
    unsigned int *const shown = *(unsigned int *const *)argument;
    for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); ++i) {
        nvmlProcessInfo_t found[MOCK_MAX_PROCESSES];
        unsigned int count = MOCK_MAX_PROCESSES;
        if (lists[i].get(device, &count, found) != NVML_SUCCESS)
            continue;
        for (unsigned int j = 0; j < count; ++j, ++*shown) {
            char gi[TEXT_ROOM], ci[TEXT_ROOM], name[TEXT_ROOM], memory[TEXT_ROOM];
            const nvmlReturn_t mig = found[j].gpuInstanceId != 0xFFFFFFFFU ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
            printf("|%5u   %3s  %3s%16u%7s   %-36.36s%10s |\n", index, smi_number(gi, mig, found[j].gpuInstanceId, " "),
                   smi_number(ci, mig, found[j].computeInstanceId, " "), found[j].pid, lists[i].type,
                   smi_text(name, nvmlSystemGetProcessName(found[j].pid, name, sizeof(name))),
                   smi_number(memory, NVML_SUCCESS, found[j].usedGpuMemory >> 20U, "MiB"));
        }
    }
    return NVML_SUCCESS;
}

static void heading(void)
{
    char now[TEXT_ROOM], driver[TEXT_ROOM], cuda[TEXT_ROOM];
    int number = 0;
    const time_t clock = time(NULL);
    strftime(now, sizeof(now), "%a %b %d %H:%M:%S %Y", localtime(&clock));
    smi_text(driver, nvmlSystemGetDriverVersion(driver, sizeof(driver)));
    const nvmlReturn_t code = nvmlSystemGetCudaDriverVersion_v2(&number);
    snprintf(cuda, sizeof(cuda), "%d.%d", number / 1000, number % 1000 / 10);
    printf("%s       \n%s\n| NVIDIA-SMI %-22.22s Driver Version: %-14.14s CUDA Version: %-8.8s |\n%s\n", now, wide_rule,
           driver, driver, smi_text(cuda, code), gpu_rule);
    printf("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
           "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
           "|                                         |                        |               MIG M. |\n"
           "|=========================================+========================+======================|\n");
}

nvmlReturn_t smi_summary(const struct smi_options *options)
{
    bool begun = false, *const mig = &begun;
    unsigned int shown = 0, *const processes = &shown;
    heading();
    const nvmlReturn_t result = smi_for_each(options, show_gpu, NULL);
    (void)smi_for_each(&(struct smi_options){.ids = options->ids, .quiet = true}, show_mig, &mig);
    printf("\n%s\n| %-87s |\n"
           "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |\n"
           "|        ID   ID                                                               Usage      |\n"
           "|=========================================================================================|\n",
           wide_rule, "Processes:");
    (void)smi_for_each(&(struct smi_options){.ids = options->ids, .quiet = true}, show_processes, &processes);
    if (shown == 0)
        printf("| %-87s |\n", " No running processes found");
    printf("%s\n", wide_rule);
    return result;
}
