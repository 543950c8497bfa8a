"""PID 1 of the node's namespaces. Runs alone (``python -I init.py HOSTNAME``), inside fresh namespaces.

It gives the node empty folders where the machine has its own (so that kubelet and containerd cannot touch those),
says ``ready`` on descriptor 3 and then collects the children that are left to it. Its death is the node's death:
the kernel kills every process of a PID namespace whose first process ends.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

# As layout.SHADOWED without /proc, which unshare has already mounted; this file imports nothing of ours.
EMPTY = ("/run", "/var/lib", "/var/log")


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM})
    subprocess.run(["mount", "--make-rshared", "/"], check=True)  # HostToContainer propagation needs a shared mount
    for folder in EMPTY:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "gpudra-node", folder], check=True)
    os.makedirs("/var/lib/kubelet/device-plugins")  # noqa: PTH103 -- pathlib costs a third of this program's start
    socket.sethostname(sys.argv[1])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    os.write(3, b"ready\n")
    os.close(3)
    while signal.sigwait({signal.SIGCHLD, signal.SIGTERM}) != signal.SIGTERM:
        reap()


def reap() -> None:
    """Collect every child that has ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


if __name__ == "__main__":
    main()
