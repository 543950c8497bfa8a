/* nvidia-smi -q: the same reading for people, and for scripts that grep: labels on the left, a colon in column 43.
 *
 * The labels are those of published output of drivers 520 to 580. Where text and XML nest differently, `deeper` says so.
 */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "smi_tree.h"

#define COLON 42
#define STEP 4

static const struct label {
    const char *name, *text; /* an empty text: the group is not shown, what is in it stands one step to the left */
    unsigned int deeper;
    bool hexadecimal; /* with 0x here, without in the XML */
} labels[] = {
    {"cuda_version", "CUDA Version", 0, false},
    {"attached_gpus", "Attached GPUs", 0, false},
    {"mig_mode", "MIG Mode", 0, false},
    {"current_mig", "Current", 0, false},
    {"pending_mig", "Pending", 0, false},
    {"mig_devices", "", 0, false},
    {"mig_device", "MIG Device", 0, false},
    {"gpu_instance_id", "GPU Instance ID", 0, false},
    {"compute_instance_id", "Compute Instance ID", 0, false},
    {"multiprocessor_count", "Multiprocessor count", 0, false},
    {"copy_engine_count", "Copy Engine count", 0, false},
    {"encoder_count", "Encoder count", 0, false},
    {"decoder_count", "Decoder count", 0, false},
    {"ofa_count", "OFA count", 0, false},
    {"jpg_count", "JPG count", 0, false},
    {"current_dm", "Current", 0, false},
    {"pending_dm", "Pending", 0, false},
    {"serial", "Serial Number", 0, false},
    {"uuid", "GPU UUID", 0, false},
    {"pdi", "GPU PDI", 0, false},
    {"vbios_version", "VBIOS Version", 0, false},
    {"multigpu_board", "MultiGPU Board", 0, false},
    {"board_id", "Board ID", 0, false},
    {"gpu_part_number", "GPU Part Number", 0, false},
    {"gpu_fru_part_number", "FRU Part Number", 0, false},
    {"platformInfo", "Platform Info", 0, false},
    {"host_id", "Host ID", 0, false},
    {"module_id", "Module Id", 0, false},
    {"gpu_fabric_guid", "GPU Fabric GUID", 0, false},
    {"img_version", "Image Version", 0, false},
    {"oem_object", "OEM Object", 0, false},
    {"ecc_object", "ECC Object", 0, false},
    {"pwr_object", "Power Management Object", 0, false},
    {"inforom_bbx_flush", "Inforom BBX Object Flush", 0, false},
    {"gpu_operation_mode", "GPU Operation Mode", 0, false},
    {"current_gom", "Current", 0, false},
    {"pending_gom", "Pending", 0, false},
    {"c2c_mode", "GPU C2C Mode", 0, false},
    {"gpu_virtualization_mode", "GPU Virtualization Mode", 0, false},
    {"host_vgpu_mode", "Host VGPU Mode", 0, false},
    {"vgpu_heterogeneous_mode", "vGPU Heterogeneous Mode", 0, false},
    {"gpu_recovery_action", "GPU Recovery Action", 0, false},
    {"gsp_firmware_version", "GSP Firmware Version", 0, false},
    {"ibmnpu", "IBMNPU", 0, false},
    {"pci", "PCI", 0, false},
    {"pci_bus", "Bus", 0, true},
    {"pci_device", "Device", 0, true},
    {"pci_domain", "Domain", 0, true},
    {"pci_base_class", "Base Classcode", 0, true},
    {"pci_sub_class", "Sub Classcode", 0, true},
    {"pci_device_id", "Device Id", 0, true},
    {"pci_bus_id", "Bus Id", 0, false},
    {"pci_sub_system_id", "Sub System Id", 0, true},
    {"pci_gpu_link_info", "GPU Link Info", 0, false},
    {"pcie_gen", "PCIe Generation", 0, false},
    {"max_link_gen", "Max", 0, false},
    {"current_link_gen", "Current", 0, false},
    {"device_current_link_gen", "Device Current", 0, false},
    {"max_device_link_gen", "Device Max", 0, false},
    {"max_host_link_gen", "Host Max", 0, false},
    {"link_widths", "Link Width", 0, false},
    {"max_link_width", "Max", 0, false},
    {"current_link_width", "Current", 0, false},
    {"pci_bridge_chip", "Bridge Chip", 0, false},
    {"bridge_chip_type", "Type", 0, false},
    {"bridge_chip_fw", "Firmware", 0, false},
    {"replay_counter", "Replays Since Reset", 0, false},
    {"replay_rollover_counter", "Replay Number Rollovers", 0, false},
    {"tx_util", "Tx Throughput", 0, false},
    {"rx_util", "Rx Throughput", 0, false},
    {"clocks_event_reason_gpu_idle", "Idle", 0, false},
    {"clocks_event_reason_applications_clocks_setting", "Applications Clocks Setting", 0, false},
    {"clocks_event_reason_sw_power_cap", "SW Power Cap", 0, false},
    {"clocks_event_reason_hw_slowdown", "HW Slowdown", 0, false},
    {"clocks_event_reason_hw_thermal_slowdown", "HW Thermal Slowdown", 1, false},
    {"clocks_event_reason_hw_power_brake_slowdown", "HW Power Brake Slowdown", 1, false},
    {"clocks_event_reason_sync_boost", "Sync Boost", 0, false},
    {"clocks_event_reason_sw_thermal_slowdown", "SW Thermal Slowdown", 0, false},
    {"clocks_event_reason_display_clocks_setting", "Display Clock Setting", 0, false},
    {"clocks_event_reasons_counters_sw_power_cap", "SW Power Capping", 0, false},
    {"clocks_event_reasons_counters_sync_boost", "Sync Boost", 0, false},
    {"clocks_event_reasons_counters_sw_therm_slowdown", "SW Thermal Slowdown", 0, false},
    {"clocks_event_reasons_counters_hw_therm_slowdown", "HW Thermal Slowdown", 0, false},
    {"clocks_event_reasons_counters_hw_power_brake", "HW Power Braking", 0, false},
    {"fb_memory_usage", "FB Memory Usage", 0, false},
    {"bar1_memory_usage", "BAR1 Memory Usage", 0, false},
    {"cc_protected_memory_usage", "Conf Compute Protected Memory Usage", 0, false},
    {"gpu_util", "GPU", 0, false},
    {"memory_util", "Memory", 0, false},
    {"encoder_util", "Encoder", 0, false},
    {"decoder_util", "Decoder", 0, false},
    {"jpeg_util", "JPEG", 0, false},
    {"ofa_util", "OFA", 0, false},
    {"session_count", "Active Sessions", 0, false},
    {"average_fps", "Average FPS", 0, false},
    {"fbc_stats", "FBC Stats", 0, false},
    {"dram_encryption_mode", "DRAM Encryption Mode", 0, false},
    {"current_dram_encryption", "Current", 0, false},
    {"pending_dram_encryption", "Pending", 0, false},
    {"ecc_mode", "ECC Mode", 0, false},
    {"current_ecc", "Current", 0, false},
    {"pending_ecc", "Pending", 0, false},
    {"ecc_errors", "ECC Errors", 0, false},
    {"sram_correctable", "SRAM Correctable", 0, false},
    {"sram_uncorrectable_parity", "SRAM Uncorrectable Parity", 0, false},
    {"sram_uncorrectable_secded", "SRAM Uncorrectable SEC-DED", 0, false},
    {"dram_correctable", "DRAM Correctable", 0, false},
    {"dram_uncorrectable", "DRAM Uncorrectable", 0, false},
    {"sram_threshold_exceeded", "SRAM Threshold Exceeded", 0, false},
    {"aggregate_uncorrectable_sram_sources", "Aggregate Uncorrectable SRAM Sources", 0, false},
    {"sram_l2", "SRAM L2", 0, false},
    {"sram_sm", "SRAM SM", 0, false},
    {"sram_microcontroller", "SRAM Microcontroller", 0, false},
    {"sram_pcie", "SRAM PCIE", 0, false},
    {"sram_other", "SRAM Other", 0, false},
    {"tpc_repair_pending", "TPC Repair Pending", 0, false},
    {"multiple_single_bit_retirement", "Single Bit ECC", 0, false},
    {"double_bit_retirement", "Double Bit ECC", 0, false},
    {"retired_pagelist", "Page List", 0, false},
    {"pending_blacklist", "Pending Page Blacklist", 0, false},
    {"remapped_row_corr", "Correctable Error", 0, false},
    {"remapped_row_unc", "Uncorrectable Error", 0, false},
    {"remapped_row_pending", "Pending", 0, false},
    {"remapped_row_failure", "Remapping Failure Occurred", 0, false},
    {"row_remapper_histogram", "Bank Remap Availability Histogram", 0, false},
    {"row_remapper_histogram_max", "Max", 0, false},
    {"row_remapper_histogram_high", "High", 0, false},
    {"row_remapper_histogram_partial", "Partial", 0, false},
    {"row_remapper_histogram_low", "Low", 0, false},
    {"row_remapper_histogram_none", "None", 0, false},
    {"gpu_temp", "GPU Current Temp", 0, false},
    {"gpu_temp_tlimit", "GPU T.Limit Temp", 0, false},
    {"gpu_temp_max_tlimit_threshold", "GPU Shutdown T.Limit Temp", 0, false},
    {"gpu_temp_slow_tlimit_threshold", "GPU Slowdown T.Limit Temp", 0, false},
    {"gpu_temp_max_gpu_tlimit_threshold", "GPU Max Operating T.Limit Temp", 0, false},
    {"gpu_target_temperature", "GPU Target Temperature", 0, false},
    {"memory_temp", "Memory Current Temp", 0, false},
    {"gpu_temp_max_mem_tlimit_threshold", "Memory Max Operating T.Limit Temp", 0, false},
    {"supported_gpu_target_temp", "", 0, false},
    {"gpu_target_temp_min", "GPU Target Temp Min", 1, false},
    {"gpu_target_temp_max", "GPU Target Temp Max", 1, false},
    {"gpu_power_readings", "GPU Power Readings", 0, false},
    {"instant_power_draw", "Instantaneous Power Draw", 0, false},
    {"gpu_memory_power_readings", "GPU Memory Power Readings", 0, false},
    {"power_profile_requested_profiles", "Requested Profiles", 0, false},
    {"power_profile_enforced_profiles", "Enforced Profiles", 0, false},
    {"graphics_clock", "Graphics", 0, false},
    {"sm_clock", "SM", 0, false},
    {"mem_clock", "Memory", 0, false},
    {"video_clock", "Video", 0, false},
    {"cliqueId", "CliqueId", 0, false},
    {"clusterUuid", "ClusterUUID", 0, false},
    {"process_info", "", 0, false},
    {"pid", "Process ID", 0, false},
    {"type", "Type", 1, false},
    {"process_name", "Name", 1, false},
    {"used_memory", "Used GPU Memory", 1, false},
    {"egm", "EGM", 0, false},
};

/* -d: the sections that a word of it means. Deeper groups come with theirs. */
static const struct {
    const char *word, *section;
} displays[] = {
    {"MEMORY", "fb_memory_usage"},     {"MEMORY", "bar1_memory_usage"},  {"MEMORY", "cc_protected_memory_usage"},
    {"UTILIZATION", "utilization"},    {"ECC", "ecc_mode"},              {"ECC", "ecc_errors"},
    {"TEMPERATURE", "temperature"},    {"POWER", "gpu_power_readings"},  {"POWER", "module_power_readings"},
    {"CLOCK", "clocks"},               {"CLOCK", "applications_clocks"}, {"CLOCK", "max_clocks"},
    {"COMPUTE", "compute_mode"},       {"PIDS", "processes"},            {"PERFORMANCE", "performance_state"},
    {"PERFORMANCE", "clocks_event_reasons"}, {"PAGE_RETIREMENT", "retired_pages"}, {"ROW_REMAPPER", "remapped_rows"},
    {"ENCODER_STATS", "encoder_stats"}, {"FBC_STATS", "fbc_stats"},
};

static struct {
    const char *display;     /* NULL: everything */
    unsigned int shift;      /* groups that are not shown around what is printed now */
    unsigned int hidden;     /* depth of the section that -d leaves out; 0: none */
    bool empty;              /* the group that was opened last has had nothing in it yet */
    char group[TEXT_ROOM];
    unsigned int group_depth;
} text;

static const struct label *label_of(const char *name)
{
    for (size_t i = 0; i < sizeof(labels) / sizeof(*labels); ++i)
        if (strcmp(labels[i].name, name) == 0)
            return &labels[i];
    return NULL;
}

/* What stands for a name: its label, else its words with capitals. */
static void words(const char *name, char room[TEXT_ROOM])
{
    const struct label *known = label_of(name);
    snprintf(room, TEXT_ROOM, "%s", known != NULL ? known->text : name);
    for (char *at = room; known == NULL && *at != '\0'; ++at) {
        if (*at == '_')
            *at = ' ';
        else if (at == room || at[-1] == ' ')
            *at = (char)toupper((unsigned char)*at);
    }
}

static bool wanted(const char *section)
{
    for (size_t i = 0; text.display != NULL && i < sizeof(displays) / sizeof(*displays); ++i) {
        const char *at = text.display;
        const size_t length = strlen(displays[i].word);
        for (; *at != '\0'; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ','))
            if (strcspn(at, ",") == length && strncasecmp(at, displays[i].word, length) == 0 &&
                strcmp(displays[i].section, section) == 0)
                return true;
    }
    return text.display == NULL;
}

static int indentation(unsigned int depth, const char *name)
{
    const struct label *known = label_of(name);
    return (int)(STEP * (depth - 1 - text.shift + (known != NULL ? known->deeper : 0)));
}

static void show_group(void)
{
    char label[TEXT_ROOM];
    words(text.group, label);
    if (text.empty && *label != '\0')
        printf("%*s%s\n", indentation(text.group_depth, text.group), "", label);
    text.empty = false;
}

static void leaf(unsigned int depth, const char *name, const char *value)
{
    char label[TEXT_ROOM];
    if (text.hidden != 0 || (depth == 2 && !wanted(name)))
        return;
    words(name, label);
    show_group();
    if (*label == '\0' || *value == '\0')
        return; /* what only XML has a place for */
    const int before = indentation(depth, name);
    const struct label *known = label_of(name);
    printf("%s%*s%-*s: %s%s\n", strcmp(name, "attached_gpus") == 0 ? "\n" : "", before, "", COLON - before, label,
           known != NULL && known->hexadecimal && strcmp(value, "N/A") != 0 ? "0x" : "", value);
}

static void open_group(unsigned int depth, const char *name)
{
    char label[TEXT_ROOM];
    if (depth == 2 && !wanted(name))
        text.hidden = depth;
    if (text.hidden != 0)
        return;
    show_group();
    words(name, label);
    text.shift += *label == '\0';
    text.empty = *label != '\0';
    snprintf(text.group, sizeof(text.group), "%s", name);
    text.group_depth = depth;
}

static void close_group(unsigned int depth, const char *name)
{
    char label[TEXT_ROOM];
    words(name, label);
    if (text.hidden == 0) {
        if (text.empty)
            printf("%*s%-*s: None\n", indentation(depth, name), "", COLON - indentation(depth, name), label);
        text.empty = false;
        text.shift -= *label == '\0';
    }
    if (text.hidden == depth)
        text.hidden = 0;
}

static void gpu(const char *id)
{
    printf("GPU %s\n", id);
}

static void gpu_end(void)
{
    putchar('\n');
}

bool smi_is_display(const char *display)
{
    bool known = *display != '\0';
    for (const char *at = display; known && *at != '\0'; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ',')) {
        const size_t length = strcspn(at, ",");
        known = false;
        for (size_t i = 0; i < sizeof(displays) / sizeof(*displays); ++i)
            known = known || (strlen(displays[i].word) == length && strncasecmp(at, displays[i].word, length) == 0);
    }
    return known;
}

nvmlReturn_t smi_long(const struct smi_options *options, const char *display)
{
    static const struct smi_style style = {gpu, gpu_end, open_group, close_group, leaf};
    text.display = display;
    printf("\n==============NVSMI LOG==============\n\n");
    return smi_tree(options, &style);
}
