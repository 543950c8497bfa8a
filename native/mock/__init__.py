"""A GPU node without a GPU: a look-alike of libnvidia-ml.so.1 in C, an nvidia-smi, and a fake root around them.

    node = MockNode.create(Path("/tmp/node"), "dgx-h100")
    node.activate()                      # the library finds the node through the environment
    ctypes.CDLL(node.library)            # or pynvml, cffi, nvidia-smi, a container
    node.set_gpu_state("0000:1b:00.0", "lost")
    node.xid("0000:43:00.0", 79)         # and everything else that befalls a GPU

It is used by explicit path only, says on stderr that it is not hardware, and carries ``gpudra_mock_marker``.
"""

from __future__ import annotations

from native.mock import profiles
from native.mock.build import BuildError
from native.mock.control import Process
from native.mock.layout import Text
from native.mock.node import MockNode
from native.mock.pcie import ProfileError
from native.mock.profile import Failure, Profile

__all__ = ["BuildError", "Failure", "MockNode", "Process", "Profile", "ProfileError", "Text", "profiles"]
