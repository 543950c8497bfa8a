"""What a reader of a message can do about a file, folder or socket that the kernel refuses."""

from __future__ import annotations

import errno

_REMEDIES = {
    errno.ENOSPC: "free space (or inodes) on that file system",
    errno.EDQUOT: "raise the quota of that file system",
    errno.EROFS: "mount that file system writable",
    errno.EACCES: "give the plugin write access to that folder (run it as root; see the log of SELinux or AppArmor)",
    errno.EPERM: "give the plugin write access to that folder (run it as root; see the log of SELinux or AppArmor)",
    errno.EIO: "check the disk (see the kernel log)",
    errno.ENOENT: "check the hostPath mount of the plugin's pod",
    errno.ENOTDIR: "something that is not a folder stands in its path: move it away",
    errno.EEXIST: "something that is not a folder stands there: move it away",
    errno.ENAMETOOLONG: "use a shorter path to that folder",
    errno.ELOOP: "a symbolic link in its path leads back to itself: remove it",
    errno.EADDRINUSE: "what lies there cannot be replaced: remove it",
    errno.EOPNOTSUPP: "that file system has no such files: use another one",
}


def remedy(error: OSError, otherwise: str = "see the log of the plugin") -> str:
    """What to do about it; ``otherwise`` where nothing is known to help."""
    return _REMEDIES.get(error.errno or 0, otherwise)
