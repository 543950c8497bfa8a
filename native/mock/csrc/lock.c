/* The lock of everybody who changes the node: flock on a description of its own.
 *
 * The kernel lets go of it when a process dies, however it dies, so a node is never left locked; it excludes threads of
 * one process too, because each takes it on another description; and it needs no memory that two C libraries (the static
 * nvidia-smi, a dynamic client) would have to agree on, as a mutex in the file would.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "mock.h"

nvmlReturn_t mock_lock(int *lock)
{
    if (mock_writable_node() == NULL)
        return NVML_ERROR_NO_PERMISSION;
    *lock = open(mock_path(), O_RDWR | O_CLOEXEC);
    if (*lock < 0)
        return NVML_ERROR_NO_PERMISSION;
    while (flock(*lock, LOCK_EX) != 0)
        if (errno != EINTR) {
            close(*lock);
            return NVML_ERROR_OPERATING_SYSTEM;
        }
    return NVML_SUCCESS;
}

/* Unlocked by word and not by closing alone: a child that was forked meanwhile shares the description. */
void mock_unlock(int lock)
{
    (void)flock(lock, LOCK_UN);
    close(lock);
}
