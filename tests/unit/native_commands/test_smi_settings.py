"""nvidia-smi's settings are set by UUID, read back, and told apart: not supported, failed, not as it was set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from native.commands import CommandError, Completed, Deadline, DriverPrograms
from native.smi import ComputeMode, NotSupportedError, NvidiaSmi

UUID = "GPU-00000000-0000-4000-8000-000000000000"


class Recorded(DriverPrograms):
    """Answers from a table: a word of the arguments -> answer."""

    def __init__(self, answers: Mapping[str, Completed]) -> None:
        super().__init__(Path("/"), Path("/nowhere"))
        self.answers = answers
        self.calls: list[list[str]] = []

    def run(
        self,
        program: str,
        arguments: Sequence[str],
        *,
        seconds: float,
        stdin: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> Completed:
        self.calls.append([program, *arguments])
        return next((answer for word, answer in self.answers.items() if word in arguments), Completed(0, ""))


def smi(**answers: Completed) -> tuple[NvidiaSmi, Recorded]:
    words = {"set": "--set-timeslice=3", "slice": "-l", "mode": "-c", "query": "--query-gpu=compute_mode"}
    programs = Recorded({words[name]: answer for name, answer in answers.items()})
    return NvidiaSmi(programs), programs


def test_a_time_slice_is_set_and_read_back() -> None:
    table = "| GPU  Policy     Value |\n|  0   Timeslice  Long  |\n"
    made, programs = smi(slice=Completed(0, table))
    made.set_time_slice(UUID, 3, Deadline(10))
    assert programs.calls == [
        ["nvidia-smi", "compute-policy", "-i", UUID, "--set-timeslice=3"],
        ["nvidia-smi", "compute-policy", "-i", UUID, "-l"],
    ]


@pytest.mark.parametrize(
    ("output", "level"),
    [
        ("GPU 0: timeslice Default\n", 0),
        ("Time Slice : SHORT", 1),
        ("timeslice=2", 2),
        ("time-slice | Long |", 3),
        ("timeslice 9", None),
        ("nothing", None),
    ],
)
def test_the_present_slice_is_read_in_the_words_of_several_versions(output: str, level: int | None) -> None:
    assert smi(slice=Completed(0, output))[0].time_slice(UUID, Deadline(10)) == level


def test_a_table_in_unknown_words_is_no_failure() -> None:
    smi(slice=Completed(1, "unknown option"))[0].set_time_slice(UUID, 3, Deadline(10))


def test_a_slice_that_is_not_what_was_set_is_a_failure() -> None:
    with pytest.raises(CommandError, match="was set to 3 and is 0"):
        smi(slice=Completed(0, "timeslice Default"))[0].set_time_slice(UUID, 3, Deadline(10))


@pytest.mark.bug("B97")
@pytest.mark.parametrize(
    "answer", [Completed(3, "Unable to set"), Completed(255, "Setting timeslice is Not Supported for GPU")]
)
def test_a_gpu_without_time_slices_is_told_apart(answer: Completed) -> None:
    with pytest.raises(NotSupportedError) as caught:
        smi(set=answer)[0].set_time_slice(UUID, 3, Deadline(10))
    assert caught.value.code == answer.code


def test_another_failure_is_just_that() -> None:
    with pytest.raises(CommandError, match="exit code 4: Insufficient Permissions") as caught:
        smi(set=Completed(4, "Insufficient Permissions"))[0].set_time_slice(UUID, 3, Deadline(10))
    assert not isinstance(caught.value, NotSupportedError)


def test_a_compute_mode_is_set_and_read_back() -> None:
    made, programs = smi(query=Completed(0, "a warning\nExclusive_Process\n"))
    made.set_compute_mode(UUID, ComputeMode.EXCLUSIVE_PROCESS, Deadline(10))
    assert programs.calls[0] == ["nvidia-smi", "-i", UUID, "-c", "EXCLUSIVE_PROCESS"]
    assert made.compute_mode(UUID, Deadline(10)) is ComputeMode.EXCLUSIVE_PROCESS


@pytest.mark.bug("B103")
def test_a_mode_that_was_not_taken_is_a_failure_whatever_the_exit_code() -> None:
    """On a GPU in MIG mode nvidia-smi warns and ends with 0."""
    with pytest.raises(CommandError, match="was set to EXCLUSIVE_PROCESS and is DEFAULT"):
        smi(query=Completed(0, "Default"))[0].set_compute_mode(UUID, ComputeMode.EXCLUSIVE_PROCESS, Deadline(10))


def test_a_gpu_that_does_not_tell_its_mode_is_believed_and_one_that_is_lost_is_not() -> None:
    smi(query=Completed(0, "[N/A]"))[0].set_compute_mode(UUID, ComputeMode.DEFAULT, Deadline(10))
    with pytest.raises(CommandError, match="exit code 15"):
        smi(query=Completed(15, "GPU is lost"))[0].compute_mode(UUID, Deadline(10))


class Stuck:
    """A process that hangs in the kernel until it is let go."""

    def __init__(self) -> None:
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code


def test_a_change_that_cannot_even_be_killed_hangs_over_its_gpu_until_it_is_gone() -> None:
    made, programs = smi(query=Completed(0, "Default\n"))
    stuck: Any = Stuck()

    def hang(*_arguments: object, **_named: object) -> Completed:
        raise CommandError("did not end within 1 s and was killed", None, "", stuck)

    running, programs.run = programs.run, hang  # type: ignore[method-assign]  # one call hangs
    for change in (
        lambda: made.set_compute_mode(UUID, ComputeMode.DEFAULT, Deadline(1)),
        lambda: made.set_time_slice(UUID, 3, Deadline(1)),
        lambda: made.compute_mode("GPU-2", Deadline(1)),
    ):
        with pytest.raises(CommandError):
            change()
    programs.run = running  # type: ignore[method-assign]  # as before
    assert made.hangs(UUID)
    assert not made.hangs("GPU-2"), "what only reads changes nothing later"
    assert made.compute_mode(UUID, Deadline(1)) is ComputeMode.DEFAULT
    stuck.code = -9
    assert not made.hangs(UUID)
