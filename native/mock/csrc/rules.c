/* Rules: which calls fail or are slow now. They stand in the node file, so they act on every process at once. */
#define _GNU_SOURCE
#include <errno.h>
#include <time.h>

#include "mock.h"

#define MILLION 1000000U

void mock_pause(int64_t milliseconds)
{
    struct timespec left = {milliseconds / 1000, (milliseconds % 1000) * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
}

static bool present(const struct mock_rule *entry)
{
    return __atomic_load_n(&entry->function[0], __ATOMIC_RELAXED) != 0;
}

/* Serves the delay of a rule; one of -1 lasts until the rule is taken away. */
static void serve_delay(const struct mock_rule *entry)
{
    const int64_t delay = entry->delay_ms;
    if (delay > 0)
        mock_pause(delay);
    while (delay < 0 && present(entry))
        mock_pause(10);
}

/* An exact name, or the beginning of one and a star. */
static bool is_about(const struct mock_rule *entry, const char *function)
{
    const char *name = (const char *)entry->function;
    const size_t length = strnlen(name, sizeof(entry->function));
    if (length > 0 && name[length - 1] == '*')
        return strncmp(name, function, length - 1) == 0;
    return strncmp(name, function, sizeof(entry->function)) == 0;
}

/* Counters stand in the rule, common to all processes; one that can only read the node counts for itself. */
static int64_t *counter(const int64_t *shared, int64_t local[MOCK_RULES], int64_t place)
{
    struct mock_node *node = mock_writable_node();
    if (node == NULL)
        return &local[place];
    return (int64_t *)((char *)node + ((const char *)shared - (const char *)mock_node()));
}

/* A number of [0, 1,000,000) that only depends on seed and call: splitmix64. */
static uint64_t dice(int64_t seed, int64_t call)
{
    uint64_t x = (uint64_t)seed * UINT64_C(0x9E3779B97F4A7C15) + (uint64_t)call * UINT64_C(0xBF58476D1CE4E5B9) + 1;
    x = (x ^ (x >> 30U)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27U)) * UINT64_C(0x94D049BB133111EB);
    return (x ^ (x >> 31U)) % MILLION;
}

static bool over(const struct mock_rule *entry)
{
    struct timespec now;
    if (entry->until_ns <= 0)
        return false;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec >= entry->until_ns;
}

static bool fires(const struct mock_rule *entry, int64_t place)
{
    static int64_t local_calls[MOCK_RULES], local_fired[MOCK_RULES];
    int64_t *fired = counter(&entry->fired, local_fired, place);
    const int64_t call = __atomic_fetch_add(counter(&entry->calls, local_calls, place), 1, __ATOMIC_RELAXED);
    if (over(entry))
        return false;
    if (entry->sticky == 1 && __atomic_load_n(fired, __ATOMIC_RELAXED) > 0)
        return true;
    if (call < entry->after || dice(entry->seed, call) >= (uint64_t)entry->probability)
        return false;
    const int64_t before = __atomic_fetch_add(fired, 1, __ATOMIC_RELAXED);
    return entry->times < 0 || before < entry->times;
}

/* The first rule that fits and fires; ``for_one_gpu`` leaves out those that are about all GPUs. */
static nvmlReturn_t search(const char *function, nvmlDevice_t device, bool for_one_gpu, unsigned int version)
{
    const struct mock_node *node = mock_node();
    const struct mock_rule *rules = (const struct mock_rule *)((const char *)node + node->rule_offset);
    unsigned int position = 0;
    const int64_t count = __atomic_load_n(&node->rule_count, __ATOMIC_ACQUIRE);
    if (count <= 0)
        return NVML_SUCCESS;
    const bool about_gpu = mock_position(device, &position);
    for (int64_t i = 0; i < count && i < node->rule_capacity && i < MOCK_RULES; ++i) {
        const struct mock_rule *entry = &rules[i];
        if (!present(entry) || entry->version != (int64_t)version || !is_about(entry, function))
            continue;
        if (entry->gpu < 0 ? for_one_gpu : !about_gpu || entry->gpu != (int64_t)position)
            continue;
        const int64_t code = entry->code;
        if (!fires(entry, i))
            continue;
        serve_delay(entry);
        if (code >= 0)
            return (nvmlReturn_t)code;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t mock_rule(const char *function, nvmlDevice_t device, bool for_one_gpu)
{
    return search(function, device, for_one_gpu, 0);
}

bool mock_refuses(const char *function, nvmlDevice_t device, unsigned int version)
{
    return search(function, device, false, version) != NVML_SUCCESS;
}
