/* Every function of NVML, called before and after init, without and with handles and room for answers. The test puts
   the calls in. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "nvml.h"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static char room[1 << 16] __attribute__((aligned(16)));
static nvmlDevice_t device;
static void clear(void) { memset(room, 0, sizeof(room)); }
static int say(const char *name, nvmlReturn_t code)
{
    printf("%s %d\n", name, (int)code);
    return (int)code;
}
static void with_nothing(void)
{
    /* WITH NOTHING */
}
static void with_room(void)
{
    /* WITH ROOM */
}
/* Every call with a handle of each kind, alive and dead; gives how often something went wrong that must not. */
static int divide(void)
{
    nvmlReturn_t status;
    nvmlGpuInstance_t gi;
    nvmlComputeInstance_t ci;
    nvmlComputeInstanceInfo_t info;
    nvmlDevice_t parent = device;
    unsigned int mode = 0, pending = 0;
    if (nvmlDeviceGetMigMode(parent, &mode, &pending) != NVML_SUCCESS)
        return 0;
    if (nvmlDeviceSetMigMode(parent, 1, &status) || status || nvmlDeviceCreateGpuInstance(parent, 0, &gi))
        return 1;
    clear();
    for (unsigned int profile = 0; profile < 9; ++profile)
        (void)nvmlGpuInstanceCreateComputeInstance(gi, profile, &ci);
    if (nvmlGpuInstanceGetComputeInstanceById(gi, 0, &ci) || nvmlComputeInstanceGetInfo_v2(ci, &info))
        return 2;
    device = info.device;
    puts("# mig device");
    with_nothing();
    with_room();
    for (unsigned int id = 0; id < 8; ++id)
        if (nvmlGpuInstanceGetComputeInstanceById(gi, id, &ci) == NVML_SUCCESS && nvmlComputeInstanceDestroy(ci))
            return 3;
    if (nvmlGpuInstanceDestroy(gi) != NVML_SUCCESS)
        return 4;
    with_room();
    for (unsigned int bit = 0; bit < 64; ++bit) {
        device = (nvmlDevice_t)((unsigned long)info.device ^ 1UL << bit);
        (void)nvmlDeviceGetUUID(device, room, 96);
        (void)nvmlGpuInstanceDestroy((nvmlGpuInstance_t)device);
        (void)nvmlComputeInstanceGetInfo_v2((nvmlComputeInstance_t)device, &info);
    }
    device = parent;
    return nvmlDeviceSetMigMode(parent, 0, &status) || status ? 5 : 0;
}
int main(void)
{
    unsigned int count = 0;
    puts("# before");
    with_nothing();
    if (say("nvmlInit_v2", nvmlInit_v2()) || nvmlDeviceGetCount_v2(&count))
        return 1;
    puts("# without device");
    with_nothing();
    puts("# with device");
    for (unsigned int i = 0; i < count; ++i) {
        if (nvmlDeviceGetHandleByIndex_v2(i, &device))
            return 2;
        with_nothing();
        with_room();
        const int wrong = divide();
        if (wrong)
            return 10 + wrong;
    }
    nvmlEventSet_t set;
    nvmlEventData_t event;
    if (nvmlEventSetCreate(&set) || nvmlEventSetWait_v2(set, &event, 1) != NVML_ERROR_TIMEOUT || nvmlEventSetFree(set))
        return 3;
    for (int code = -1; code < 1000; ++code)
        if (!strlen(nvmlErrorString((nvmlReturn_t)code)))
            return 4;
    return nvmlShutdown() ? 5 : 0;
}
