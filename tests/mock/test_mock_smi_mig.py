"""nvidia-smi mig of the mock against what people have published of NVIDIA's, character by character.

The tables' layout: A100 with driver 570 and older (NVIDIA/gpu-operator#1303, NVIDIA/mig-parted#139 and others show the
narrow one), RTX PRO 6000 with 610 (bigstack-oss/cubecos#312 shows the wide one). The values are the boards'.
"""

from __future__ import annotations

import re
import subprocess

import pytest

from native.mock import MockNode

NARROW = """\
+-----------------------------------------------------------------------------+
| GPU instance profiles:                                                      |
| GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC  |
|                              Free/Total   GiB              CE    JPEG  OFA  |
|=============================================================================|
|   0  MIG 1g.5gb        19     7/7        4.75       No     14     0     0   |
|                                                             1     0     0   |
+-----------------------------------------------------------------------------+
|   0  MIG 1g.5gb+me     20     1/1        4.75       No     14     1     0   |
|                                                             1     1     1   |
+-----------------------------------------------------------------------------+
|   0  MIG 1g.10gb       15     4/4        9.62       No     14     1     0   |
|                                                             1     0     0   |
+-----------------------------------------------------------------------------+
|   0  MIG 2g.10gb       14     3/3        9.62       No     28     1     0   |
|                                                             2     0     0   |
+-----------------------------------------------------------------------------+
"""
WIDE = """\
+-------------------------------------------------------------------------------+
| GPU instance profiles:                                                        |
| GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC  |
|                                Free/Total   GiB              CE    JPEG  OFA  |
|===============================================================================|
|   0  MIG 1g.24gb         14     4/4        23.62      No     46     1     1   |
|                                                               1     1     0   |
+-------------------------------------------------------------------------------+
|   0  MIG 1g.24gb+me      21     1/1        23.62      No     46     1     1   |
|                                                               1     1     1   |
+-------------------------------------------------------------------------------+
|   0  MIG 1g.24gb+gfx     47     4/4        23.62      No     46     1     1   |
|                                                               1     1     0   |
+-------------------------------------------------------------------------------+
|   0  MIG 1g.24gb+me.all  65     1/1        23.62      No     46     4     4   |
|                                                               1     4     1   |
+-------------------------------------------------------------------------------+
"""
INSTANCES = """\
+-------------------------------------------------------+
| GPU instances:                                        |
| GPU   Name             Profile  Instance   Placement  |
|                          ID       ID       Start:Size |
|=======================================================|
|   0  MIG 1g.5gb          19       11          2:1     |
+-------------------------------------------------------+
|   0  MIG 1g.5gb          19       12          3:1     |
+-------------------------------------------------------+
|   0  MIG 3g.20gb          9        1          4:4     |
+-------------------------------------------------------+
"""
COMPUTE_PROFILES = """\
+--------------------------------------------------------------------------------------+
| Compute instance profiles:                                                           |
| GPU     GPU       Name             Profile  Instances   Exclusive       Shared       |
|       Instance                       ID     Free/Total     SM       DEC   ENC   OFA  |
|         ID                                                          CE    JPEG       |
|======================================================================================|
|   0      1       MIG 1c.3g.20gb       0      2/3           14        2     0     0   |
|                                                                      3     0         |
+--------------------------------------------------------------------------------------+
|   0      1       MIG 2c.3g.20gb       1      0/1           28        2     0     0   |
|                                                                      3     0         |
+--------------------------------------------------------------------------------------+
|   0      1       MIG 3g.20gb          2*     0/1           42        2     0     0   |
|                                                                      3     0         |
+--------------------------------------------------------------------------------------+
"""
COMPUTE = """\
+--------------------------------------------------------------------+
| Compute instances:                                                 |
| GPU     GPU       Name             Profile   Instance   Placement  |
|       Instance                       ID        ID       Start:Size |
|         ID                                                         |
|====================================================================|
|   0      1       MIG 1c.3g.20gb       0         0          0:1     |
+--------------------------------------------------------------------+
"""


def smi(node: MockNode, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [node.smi, *arguments], env={"GPUDRA_MOCK_QUIET": "1"}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


@pytest.fixture
def dgx_a100(tmp_path_factory: pytest.TempPathFactory) -> MockNode:
    """Driver 570; GPU 0 is divided, without instances."""
    node = MockNode.create(tmp_path_factory.mktemp("a100") / "root", "dgx-a100")
    assert smi(node, "-mig", "1", "-i", "0")[0] == 0
    return node


@pytest.fixture(scope="module")
def rtx(tmp_path_factory: pytest.TempPathFactory) -> MockNode:
    """A driver of the wide tables."""
    return MockNode.create(tmp_path_factory.mktemp("rtx") / "root", "rtx-pro-6000")


def test_profiles_of_an_a100_stand_in_the_narrow_table(dgx_a100: MockNode) -> None:
    code, text = smi(dgx_a100, "mig", "-lgip", "-i", "0")
    assert code == 0
    assert text.startswith(NARROW)
    assert text.endswith(
        "|   0  MIG 7g.40gb        0     1/1        39.50      No     98     5     0   |\n"
        "|                                                             7     1     1   |\n"
        "+-----------------------------------------------------------------------------+\n"
    )


def test_profiles_of_an_rtx_pro_stand_in_the_wide_table(rtx: MockNode) -> None:
    code, text = smi(rtx, "mig", "-lgip", "-i", "0")
    assert code == 0
    # captured with MIG on; off, nothing is free
    assert re.sub(r" 0/(\d)", r" \1/\1", text).startswith(WIDE)
    assert {len(line) for line in text.splitlines()} == {81}


def test_profiles_come_in_nvidias_order(rtx: MockNode, dgx_a100: MockNode) -> None:
    def ids(node: MockNode) -> list[int]:
        return [int(number) for number in re.findall(r"Profile ID +(\d+)", smi(node, "mig", "-lgipp", "-i", "0")[1])]

    assert ids(rtx) == [14, 21, 47, 65, 67, 5, 35, 64, 66, 0, 32]
    assert ids(dgx_a100) == [19, 20, 15, 14, 9, 5, 0]


def test_instances_stand_in_the_published_table(dgx_a100: MockNode) -> None:
    assert smi(dgx_a100, "mig", "-cgi", "9,19:2,19:3", "-i", "0")[0] == 0
    assert smi(dgx_a100, "mig", "-lgi") == (0, INSTANCES)


def test_compute_instances_and_what_else_fits_stand_in_the_published_tables(dgx_a100: MockNode) -> None:
    assert smi(dgx_a100, "mig", "-cgi", "9", "-i", "0")[0] == 0
    assert smi(dgx_a100, "mig", "-cci", "0", "-gi", "1", "-i", "0")[0] == 0
    assert smi(dgx_a100, "mig", "-lci") == (0, COMPUTE)
    assert smi(dgx_a100, "mig", "-lcip", "-gi", "1") == (0, COMPUTE_PROFILES)


def test_where_there_is_nothing_to_list_that_is_said(dgx_a100: MockNode, own_node: MockNode) -> None:
    assert smi(dgx_a100, "mig", "-lgi") == (6, "No GPU instances found: Not Found\n")
    assert smi(dgx_a100, "mig", "-lci") == (6, "No compute instances found: Not Found\n")
    assert smi(dgx_a100, "mig", "-lgi", "-i", "1") == (6, "No MIG-enabled devices found.\n")
    assert smi(own_node, "mig", "-lgip") == (6, "No MIG-supported devices found.\n")


def test_a_mode_that_stays_pending_says_what_to_do(dgx_a100: MockNode) -> None:
    dgx_a100.set_number("0000:0f:00.0", "mig_activation", 3)
    code, text = smi(dgx_a100, "-mig", "1", "-i", "1")
    assert (code, text.splitlines()) == (
        0,
        [
            "Warning: MIG mode is in pending enable state for GPU 00000000:0F:00.0:Not Supported",
            "Reboot the system or try nvidia-smi --gpu-reset to make MIG mode effective on GPU 00000000:0F:00.0",
            "All done.",
        ],
    )
    dgx_a100.set_number("0000:0f:00.0", "mig_activation", 19)
    assert (
        "00000000:0F:00.0 is currently being used by one or more other processes"
        in smi(dgx_a100, "-mig", "1", "-i", "1")[1]
    )
