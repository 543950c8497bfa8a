/* Fields of --query-gpu that other fields, or the long listing, know already: other people's scripts ask for all of them.
 *
 * What fills a field: "=" a constant, "!" a bit of the clocks event reasons, "#" all of them as a number, "@" something that
 * the long listing knows, anything else another field. A constant with a unit is written "=0| MiB".
 */
#include <stdlib.h>
#include <string.h>

#include "smi.h"

static const struct {
    const char *name, *filling;
} fields[] = {
    {"accounting.buffer_size", "=4000"},
    {"accounting.mode", "=Disabled"},
    {"addressing_mode", "@addressing"},
    {"c2c.mode", "@c2c"},
    {"clocks.applications.gr", "=[N/A]"},
    {"clocks.applications.graphics", "=[N/A]"},
    {"clocks.applications.mem", "=[N/A]"},
    {"clocks.applications.memory", "=[N/A]"},
    {"clocks_event_reasons.active", "#"},
    {"clocks_event_reasons.applications_clocks_setting", "!2"},
    {"clocks_event_reasons.gpu_idle", "!1"},
    {"clocks_event_reasons.hw_power_brake_slowdown", "!128"},
    {"clocks_event_reasons.hw_slowdown", "!8"},
    {"clocks_event_reasons.hw_thermal_slowdown", "!64"},
    {"clocks_event_reasons.supported", "=0x00000000000001FF"},
    {"clocks_event_reasons.sw_power_cap", "!4"},
    {"clocks_event_reasons.sw_thermal_slowdown", "!32"},
    {"clocks_event_reasons.sync_boost", "!16"},
    {"display_active", "=Disabled"},
    {"display_attached", "=No"},
    {"display_mode", "=[Requested functionality has been deprecated]"},
    {"dramEncryption.mode.current", "=[N/A]"},
    {"dramEncryption.mode.pending", "=[N/A]"},
    {"driver_model.current", "=[N/A]"},
    {"driver_model.pending", "=[N/A]"},
    {"ecc.errors.corrected.aggregate.dram", "ecc.errors.corrected.aggregate.total"},
    {"ecc.errors.corrected.volatile.device_memory", "ecc.errors.corrected.volatile.total"},
    {"ecc.errors.corrected.volatile.dram", "ecc.errors.corrected.volatile.total"},
    {"ecc.errors.uncorrected.aggregate.dram", "ecc.errors.uncorrected.aggregate.total"},
    {"ecc.errors.uncorrected.volatile.device_memory", "ecc.errors.uncorrected.volatile.total"},
    {"ecc.errors.uncorrected.volatile.dram", "ecc.errors.uncorrected.volatile.total"},
    {"encoder.stats.averageFps", "=0"},
    {"encoder.stats.averageLatency", "=0"},
    {"encoder.stats.sessionCount", "=0"},
    {"fabric.cliqueId", "@fabric_clique"},
    {"fabric.clusterUuid", "@fabric_cluster"},
    {"fabric.state", "@fabric_state"},
    {"fabric.status", "@fabric_status"},
    {"gom.current", "=[N/A]"},
    {"gom.pending", "=[N/A]"},
    {"gpu_recovery_action", "@recovery"},
    {"gsp.mode.current", "=Enabled"},
    {"gsp.mode.default", "=Enabled"},
    {"inforom.ecc", "=[N/A]"},
    {"inforom.image", "inforom.img"},
    {"inforom.oem", "=[N/A]"},
    {"inforom.power", "=[N/A]"},
    {"inforom.pwr", "=[N/A]"},
    {"pcie.link.gen.gpucurrent", "pcie.link.gen.current"},
    {"pcie.link.gen.hostmax", "=[N/A]"},
    {"power.draw.average", "power.draw"},
    {"power.management", "=Enabled"},
    {"protected_memory.free", "=0| MiB"},
    {"protected_memory.total", "=0| MiB"},
    {"protected_memory.used", "=0| MiB"},
    {"remapped_rows.correctable", "@rows_corr"},
    {"remapped_rows.failure", "@rows_failure"},
    {"remapped_rows.pending", "@rows_pending"},
    {"remapped_rows.uncorrectable", "@rows_unc"},
    {"retired_pages.double_bit.count", "@pages_double"},
    {"retired_pages.pending", "@pages_pending"},
    {"retired_pages.single_bit_ecc.count", "@pages_single"},
    {"temperature.gpu.tlimit", "=[N/A]"},
    {"temperature.memory", "=[N/A]"},
    {"utilization.jpeg", "=[N/A]"},
    {"utilization.ofa", "=[N/A]"},
};

/* The older name of the reasons, which scripts still use. */
static const char *newer(const char *name, char room[TEXT_ROOM])
{
    static const char old[] = "clocks_throttle_reasons.";
    if (strncmp(name, old, sizeof(old) - 1) != 0)
        return name;
    snprintf(room, TEXT_ROOM, "clocks_event_reasons.%s", name + sizeof(old) - 1);
    return room;
}

static void reasons_value(const char *filling, nvmlDevice_t device, char room[TEXT_ROOM])
{
    unsigned long long reasons = 0;
    if (nvmlDeviceGetCurrentClocksEventReasons(device, &reasons) != NVML_SUCCESS)
        snprintf(room, TEXT_ROOM, "[N/A]");
    else if (*filling == '#')
        snprintf(room, TEXT_ROOM, "0x%016llX", reasons);
    else
        snprintf(room, TEXT_ROOM, "%s", (reasons & strtoull(filling + 1, NULL, 10)) != 0 ? "Active" : "Not Active");
}

bool smi_other_field(const char *name, unsigned int index, nvmlDevice_t device, char room[TEXT_ROOM], const char **unit)
{
    char renamed[TEXT_ROOM];
    const char *wanted = newer(name, renamed), *filling = NULL;
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields) && filling == NULL; ++i)
        if (strcmp(fields[i].name, wanted) == 0)
            filling = fields[i].filling;
    if (filling == NULL)
        return false;
    *unit = "";
    if (*filling == '=') {
        const char *bar = strchr(filling, '|');
        snprintf(room, TEXT_ROOM, "%.*s", (int)(bar != NULL ? bar - filling - 1 : (ptrdiff_t)strlen(filling)), filling + 1);
        *unit = bar != NULL ? bar + 1 : "";
    } else if (*filling == '!' || *filling == '#') {
        reasons_value(filling, device, room);
    } else if (*filling == '@') {
        smi_special(filling + 1, device, room);
        if (strcmp(room, "N/A") == 0)
            snprintf(room, TEXT_ROOM, "[N/A]");
    } else {
        return smi_field(filling, index, device, room, unit);
    }
    return true;
}
