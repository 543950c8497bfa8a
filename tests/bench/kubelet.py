"""The kubelet's side of DRAPlugin v1 with a clock: one connection, as the kubelet's is kept open."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias, TypeVar

import grpc

from kubeletplugin.api import ClaimRef
from kubeletplugin.proto import dra_v1_pb2, dra_v1_pb2_grpc, registration_v1_pb2, registration_v1_pb2_grpc

AnyReply: TypeAlias = dra_v1_pb2.NodePrepareResourcesResponse | dra_v1_pb2.NodeUnprepareResourcesResponse
_Request = TypeVar("_Request")
_Reply = TypeVar("_Reply")

CALL_TIMEOUT = 45.0
"""Seconds that the kubelet waits."""
# gRPC of Go refuses the escaped path that gRPC's core sends as authority for a unix socket.
_OPTIONS = (("grpc.default_authority", "localhost"),)


class CallError(Exception):
    """A driver's answer is not the one that a benchmark can count."""


def endpoint(registration: Path, timeout: float = 10.0) -> Path:
    """Where the DRA service is, as the plugin's GetInfo says.

    Raises:
        CallError: nobody answers.
    """
    try:
        with grpc.insecure_channel(f"unix:{registration}", options=_OPTIONS) as channel:
            stub = registration_v1_pb2_grpc.RegistrationStub(channel)
            info = stub.GetInfo(registration_v1_pb2.InfoRequest(), timeout=timeout, wait_for_ready=True)
            stub.NotifyRegistrationStatus(registration_v1_pb2.RegistrationStatus(plugin_registered=True))
    except grpc.RpcError as error:
        raise CallError(f"{registration}: {error}") from error
    return Path(info.endpoint)


class Kubelet:
    """Calls a driver and takes the time. Every answer is checked after the clock has stopped.

    Raises:
        CallError: from each method, when a claim has an error or no entry, or the call fails.
    """

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=_OPTIONS)
        grpc.channel_ready_future(self._channel).result(CALL_TIMEOUT)
        stub = dra_v1_pb2_grpc.DRAPluginStub(self._channel)
        self._prepare, self._unprepare = stub.NodePrepareResources, stub.NodeUnprepareResources

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._channel.close()

    def prepare(self, refs: Sequence[ClaimRef]) -> float:
        """One call for all claims; seconds."""
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=_claims(refs))
        begin = time.perf_counter()
        reply = self._prepare(request, timeout=CALL_TIMEOUT)
        seconds = time.perf_counter() - begin
        _check(refs, reply, devices=True)
        return seconds

    def unprepare(self, refs: Sequence[ClaimRef]) -> float:
        """One call for all claims; seconds."""
        request = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=_claims(refs))
        begin = time.perf_counter()
        reply = self._unprepare(request, timeout=CALL_TIMEOUT)
        seconds = time.perf_counter() - begin
        _check(refs, reply, devices=False)
        return seconds

    def prepare_each(self, refs: Sequence[ClaimRef]) -> float:
        """A call for each claim, all at once; seconds until the last answer."""
        requests = [dra_v1_pb2.NodePrepareResourcesRequest(claims=_claims([ref])) for ref in refs]
        seconds, replies = _at_once(self._prepare, requests)
        for ref, reply in zip(refs, replies, strict=True):
            _check([ref], reply, devices=True)
        return seconds

    def unprepare_each(self, refs: Sequence[ClaimRef]) -> float:
        """A call for each claim, all at once; seconds until the last answer."""
        requests = [dra_v1_pb2.NodeUnprepareResourcesRequest(claims=_claims([ref])) for ref in refs]
        seconds, replies = _at_once(self._unprepare, requests)
        for ref, reply in zip(refs, replies, strict=True):
            _check([ref], reply, devices=False)
        return seconds

    def empty_each(self, count: int) -> float:
        """Calls without a claim, all at once: what client, sockets and threads cost by themselves."""
        return _at_once(self._prepare, [dra_v1_pb2.NodePrepareResourcesRequest()] * count)[0]


def _at_once(
    call: grpc.UnaryUnaryMultiCallable[_Request, _Reply], requests: Sequence[_Request]
) -> tuple[float, list[_Reply]]:
    done = threading.Semaphore(0)
    begin = time.perf_counter()
    futures = [call.future(request, timeout=CALL_TIMEOUT) for request in requests]
    for future in futures:
        future.add_done_callback(lambda _: done.release())
    for _ in futures:
        done.acquire()
    return time.perf_counter() - begin, [future.result() for future in futures]


def _claims(refs: Sequence[ClaimRef]) -> list[dra_v1_pb2.Claim]:
    return [dra_v1_pb2.Claim(namespace=ref.namespace, uid=ref.uid, name=ref.name) for ref in refs]


def _check(refs: Sequence[ClaimRef], reply: AnyReply, *, devices: bool) -> None:
    for ref in refs:
        if ref.uid not in reply.claims:
            raise CallError(f"no answer for claim {ref.name}")
        entry = reply.claims[ref.uid]
        if entry.error:
            raise CallError(f"claim {ref.name}: {entry.error}")
        if devices and not any(device.cdi_device_ids for device in getattr(entry, "devices", ())):
            raise CallError(f"claim {ref.name}: no device with a CDI name")
