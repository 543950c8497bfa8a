"""What `gpudra mock --help` and the help of its verbs say."""

from __future__ import annotations

DESCRIPTION = """\
Make a GPU node that is not there, and let things happen to it.

A mock node is a folder: an NVML library that any program can load, /sys, /proc and /dev of the machine, and an
nvidia-smi. All programs that use it see one state, and every verb below changes that state at once, while they run.
It is never found by accident: only a program that is pointed at it sees it, and it says on stderr that it is no
hardware.
"""
EXAMPLES = """\
examples:
  gpudra mock up --profile dgx-h100 --root /tmp/node      make it; prints what to export
  eval "$(gpudra mock up --profile t4 --root /tmp/t4)"    make it and use it in this shell
  gpudra mock xid 3 79                                    the fourth GPU falls off the bus, say the logs
  gpudra mock set 0 utilization_gpu=95 temperature=88
  gpudra mock fault nvmlDeviceGetMemoryInfo --code UNKNOWN --after 10 --times 1
  gpudra mock unplug 0000:1b:00.0
  gpudra mock mig -- -i 0 -cgi 19,19 -C
"""
UP = """\
Make a node of a profile below --root, which must be empty or not exist, and print the lines that a shell needs:
`eval "$(gpudra mock up ...)"`. Needs a C compiler the first time.

A program finds the library by its path only: load $GPUDRA_MOCK_LIBRARY, for example
    python3 -c 'import ctypes, os, pynvml; pynvml.nvmlLib = ctypes.CDLL(os.environ["GPUDRA_MOCK_LIBRARY"]); ...'
or start it with LD_LIBRARY_PATH set to the library's folder. GPUDRA_MOCK_QUIET=1 silences the line on stderr.
"""
HOT_PLUG = """\
What happens on hardware: NVML loses the GPU (GPU_IS_LOST to who has it open, one less to who begins anew) and its files
in /sys, /proc and /dev go, in either order. A GPU that is plugged in again is another one to NVML: only sessions that
begin later see it. No uevent is sent: that is the kernel's to do; an agent watches the node's /sys instead.
"""
SET = """\
Numbers are those of NVML, in its units: temperature, power_usage_mw, utilization_gpu, utilization_memory,
throttle_reasons, ecc_single, ecc_double, remap_pending, retired_pending, recovery_action, mig_activation, ... A wrong
name lists all.

  gpudra mock set 0 utilization_gpu=95 temperature=88
  gpudra mock set 2 --state silent          calls about GPU 2 do not come back until --state ok
  gpudra mock set --driver reload           sessions from before get DRIVER_NOT_LOADED until they begin anew
"""
XID = """\
Whoever waits for XIDs of that GPU gets this one. Without --gi and --ci it is about the whole GPU (0xFFFFFFFF), as
most XIDs are on hardware, even where MIG divides it.
"""
FAULT = """\
Add a fault. Of several that fit a call, the first one that fires decides; without --code the call only takes longer.
Without a function the faults are listed.

  gpudra mock fault nvmlDeviceGetHandleByUUID --delay 10000
  gpudra mock fault 'nvmlDeviceGet*' --gpu 3 --code GPU_IS_LOST --after 100 --sticky
  gpudra mock fault nvmlDeviceGetGpuFabricInfoV --version 3          an older driver: v2 works
  gpudra mock fault mps.run --code UNKNOWN                           nvidia-cuda-mps-control crashes
  gpudra mock fault --clear
"""
MIG = """\
What follows `--` goes to the node's own `nvidia-smi mig`; `on` and `off` set the mode, of one GPU with -i.

  gpudra mock mig -- on -i 0
  gpudra mock mig -- -i 0 -cgi 9,19:0 -C
  gpudra mock mig -- -lgi
"""
PROFILES = """\
Without a name: every profile and what it is. With one: its YAML, which states the source of each section; write it to a
file, change it, and give the file to `up --profile`. The schema is in native/mock/profiles/README.md.
"""
CAPTURE = """\
Write a profile of this machine to stdout: what its driver and its bus say, nothing is changed. With --from, of a
machine that tests/gpu ran on (GPUDRA_CAPTURE=FILE pytest tests/gpu). UUIDs and serial numbers are left out unless you
ask for them. Read it before you give it away: names of network interfaces are in it.
"""
