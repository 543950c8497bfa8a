/* nvidia-smi -q -x: the document that other people's scripts read. */
#include <stdlib.h>

#include "smi_tree.h"

static void escape(const char *text)
{
    for (; *text != '\0'; ++text)
        switch (*text) {
        case '&':
            fputs("&amp;", stdout);
            break;
        case '<':
            fputs("&lt;", stdout);
            break;
        default:
            putchar((unsigned char)*text < 0x20 || (unsigned char)*text > 0x7E ? '?' : *text);
        }
}

static void indent(unsigned int depth)
{
    while (depth-- > 0)
        putchar('\t');
}

static void leaf(unsigned int depth, const char *name, const char *value)
{
    indent(depth);
    printf("<%s>", name);
    escape(value);
    printf("</%s>\n", name);
}

static void open_group(unsigned int depth, const char *name)
{
    indent(depth);
    printf("<%s>\n", name);
}

static void close_group(unsigned int depth, const char *name)
{
    indent(depth);
    printf("</%s>\n", name);
}

static void gpu(const char *id)
{
    printf("\t<gpu id=\"%s\">\n", id);
}

static void gpu_end(void)
{
    printf("\t</gpu>\n");
}

nvmlReturn_t smi_xml(const struct smi_options *options)
{
    static const struct smi_style style = {gpu, gpu_end, open_group, close_group, leaf};
    printf("<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v13.dtd\">\n<nvidia_smi_log>\n");
    const nvmlReturn_t result = smi_tree(options, &style);
    printf("</nvidia_smi_log>\n");
    return result;
}
