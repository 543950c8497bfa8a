/* The files by which the kernel driver lets processes at MIG instances: they come and go with the instances.
 *
 *   <root>/proc/driver/nvidia/capabilities/gpu<minor>/mig/gi<id>[/ci<id>]/access
 *   <root>/dev/nvidia-caps/nvidia-cap<n>
 *
 * The numbers follow what four captures agree on: config 1, monitor 2, gi 3 + 135 * minor + 9 * gi, ci one more and on.
 * They are made after the record and removed after it too, under the lock; whatever a killed process left undone, the
 * next change of an instance of that GPU puts right, because the whole GPU is gone through each time.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "mock.h"

#define CAPS_MAJOR 236

static bool exists(const char *path)
{
    struct stat facts;
    return lstat(path, &facts) == 0;
}

static void complain(const char *path)
{
    fprintf(stderr, "gpudra mock NVML: %s: %s\n", path, strerror(errno));
}

/* The device node; a plain file where this process may not make one, as when the root was made. */
static void make_node(unsigned int minor, bool wanted)
{
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof(path), "%s/dev/nvidia-caps/nvidia-cap%u", mock_root(), minor) >= sizeof(path))
        return;
    if (!wanted) {
        if (unlink(path) != 0 && errno != ENOENT)
            complain(path);
        return;
    }
    if (exists(path))
        return;
    if (mknod(path, S_IFCHR | 0666, makedev(CAPS_MAJOR, minor)) != 0) {
        const int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        if (file < 0) {
            complain(path);
            return;
        }
        close(file);
    }
    if (chmod(path, 0666) != 0)
        complain(path);
}

static void make_access(const char *folder, unsigned int minor)
{
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof(path), "%s/access", folder) >= sizeof(path) || exists(path))
        return;
    FILE *file = fopen(path, "we");
    if (file == NULL) {
        complain(path);
        return;
    }
    fprintf(file, "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor);
    if (fclose(file) != 0)
        complain(path);
}

static void show(const char *folder, unsigned int minor, bool wanted)
{
    char path[PATH_MAX];
    if (wanted) {
        if (mkdir(folder, 0555) != 0 && errno != EEXIST)
            complain(folder);
        make_access(folder, minor);
        make_node(minor, true);
        return;
    }
    make_node(minor, false);
    if ((size_t)snprintf(path, sizeof(path), "%s/access", folder) < sizeof(path) && unlink(path) != 0 && errno != ENOENT)
        complain(path);
    if (rmdir(folder) != 0 && errno != ENOENT)
        complain(folder);
}

static void show_instance(const struct mock_gi *instance, const char *folder, unsigned int minor)
{
    const bool wanted = __atomic_load_n(&instance->tag, __ATOMIC_ACQUIRE) != 0;
    if (!wanted && !exists(folder))
        return;
    if (wanted)
        show(folder, minor, true);
    for (unsigned int ci = 0; ci < MOCK_CI_IDS; ++ci) {
        char inner[PATH_MAX];
        if ((size_t)snprintf(inner, sizeof(inner), "%s/ci%u", folder, ci) >= sizeof(inner))
            return;
        const bool there = wanted && __atomic_load_n(&instance->cis[ci].tag, __ATOMIC_ACQUIRE) != 0;
        if (there || exists(inner))
            show(inner, minor + 1 + ci, there);
    }
    if (!wanted)
        show(folder, minor, false);
}

static unsigned int gi_minor(const struct mock_gpu *gpu, unsigned int gi)
{
    return 3 + 135 * (unsigned int)gpu->minor + 9 * gi;
}

static bool has_node(const char *dev, unsigned int minor)
{
    char path[PATH_MAX];
    return (size_t)snprintf(path, sizeof(path), "%s/nvidia-caps/nvidia-cap%u", dev, minor) < sizeof(path) &&
           exists(path);
}

/* In a container a MIG device is there for those who may open the nodes of both its instances. */
bool mock_may_open(const struct mock_gpu *gpu, unsigned int gi, unsigned int ci)
{
    const char *dev = getenv("GPUDRA_MOCK_DEV");
    if (dev == NULL || *dev == '\0' || gpu->minor < 0)
        return true;
    return has_node(dev, gi_minor(gpu, gi)) && has_node(dev, gi_minor(gpu, gi) + 1 + ci);
}

void mock_show_capabilities(unsigned int position)
{
    const struct mock_gpu *gpu = mock_gpu(mock_device_at(position));
    char parent[PATH_MAX], folder[PATH_MAX];
    /* without a root of its own the library would write into the real /proc and /dev */
    if (*mock_root() == '\0' || gpu->minor < 0)
        return;
    const int length = snprintf(parent, sizeof(parent), "%s/proc/driver/nvidia/capabilities/gpu%lld/mig", mock_root(),
                                (long long)gpu->minor);
    if ((size_t)length >= sizeof(parent) || !exists(parent))
        return;
    for (unsigned int gi = 0; gi < MOCK_GI_IDS; ++gi)
        if ((size_t)snprintf(folder, sizeof(folder), "%s/gi%u", parent, gi) < sizeof(folder))
            show_instance(&gpu->gis[gi], folder, gi_minor(gpu, gi));
}
