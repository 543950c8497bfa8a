"""``gpudra mps``: runs the MPS control daemons of a node in a pod of their own."""

from __future__ import annotations

import argparse
from pathlib import Path

from driver import settings as settings_module
from driver.cli.agent import GROUPS
from driver.settings import SettingsError, flag

_DESCRIPTION = """\
Runs MPS control daemons for an agent whose setting mpsDaemons is pod. They then outlive the agent: its updates and
restarts do not touch running CUDA programs. deploy/mps-daemons.yaml is a DaemonSet of it.

It serves a socket in the folder of the daemons, which the agent asks; it needs neither the API server nor NVML. Flags,
variables and the file of --config are those of the agent.
"""
_FIELDS = ("driver_name", "driver_root", "mps_dir", "log_level")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the verb."""
    parser = subparsers.add_parser(
        "mps",
        help="MPS control daemons in a pod of their own",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="JSON file with settings")
    texts = {name: text for fields in GROUPS.values() for name, text in fields.items()}
    for name in _FIELDS:
        parser.add_argument(flag(name), dest=name, metavar=name.rpartition("_")[2].upper(), help=texts[name])
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; exits with 0 then, with 1 where the folder cannot be served."""
    from driver import logs
    from driver.cli import endings
    from driver.cli.main import UsageError
    from driver.prepare.sharing.daemons import DaemonError
    from driver.prepare.sharing.keeper import Keeper

    try:
        settings = settings_module.load({name: getattr(options, name) for name in _FIELDS}, config=options.config)
    except SettingsError as err:
        raise UsageError(str(err)) from err
    logs.setup(settings.log_level, lambda: None)
    stopped = endings.caught()
    folder = Path(settings.mps_dir) / settings.driver_name
    keeper = Keeper(Path(settings.driver_root), folder, private_shm=not settings.plain_device_nodes)
    try:
        keeper.run(stopped)
    except DaemonError as err:
        import logging

        logging.getLogger(__name__).error("%s", err)  # noqa: TRY400  the message says it all
        return 1
    return 0
