"""What the tests of the kubelet's side put in the place of a driver and of an API server."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc

from kubeletplugin.api import JSON, Claim, ClaimRef, NullObserver, PreparedDevice, PrepareError, PrepareResult
from kubeletplugin.claims import claim_path
from kubeletplugin.client import ApiError
from kubeletplugin.plugin import Plugin
from kubeletplugin.proto import dra_v1_pb2, dra_v1_pb2_grpc

DRIVER = "net.example.com"
NODE = "node-1"


def ref(number: int = 1) -> ClaimRef:
    return ClaimRef(namespace="default", name=f"claim-{number}", uid=f"uid-{number}")


def claim_document(of: ClaimRef, *, pods: Sequence[str] = ("pod-1",), devices: Sequence[str] = ("eth1",)) -> JSON:
    results = [{"request": "nic", "driver": DRIVER, "pool": f"{NODE}/{DRIVER}", "device": name} for name in devices]
    return {
        "metadata": {"namespace": of.namespace, "name": of.name, "uid": of.uid},
        "spec": {},
        "status": {
            "reservedFor": [{"resource": "pods", "name": pod, "uid": pod} for pod in pods],
            "allocation": {"devices": {"results": results}},
        },
    }


class FakeApi:
    """Objects by path. Lists a collection where the path names one; deletes collections."""

    def __init__(self) -> None:
        self.objects: dict[str, JSON] = {}
        self.deleted: list[str] = []
        self.before_get: Callable[[str], None] = lambda _path: None
        self.changed = threading.Condition()

    def add_claim(self, of: ClaimRef, document: JSON | None = None) -> None:
        self.objects[claim_path(of)] = document if document is not None else claim_document(of)

    def get(self, path: str, *, timeout: float | None = None) -> JSON:
        self.before_get(path)
        if path in self.objects:
            return copy.deepcopy(self.objects[path])
        if path.endswith(("resourceclaims", "resourceslices", "deviceclasses")):
            kind = path.rpartition("/")[2]
            return {"items": [copy.deepcopy(obj) for key, obj in self.objects.items() if f"/{kind}/" in key]}
        raise ApiError(404, "NotFound", f"{path} not found")

    def update(self, path: str, body: JSON) -> JSON:
        self.objects[path.removesuffix("/status")] = copy.deepcopy(body)
        return body

    def request(self, method: str, path: str, *, query: Mapping[str, str] | None = None) -> JSON:
        assert method == "DELETE"
        with self.changed:
            self.deleted.append((query or {}).get("fieldSelector", ""))
            self.changed.notify_all()
        return {}

    def wait_deleted(self, selector: str, timeout: float = 10) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: selector in self.deleted, timeout)


class Driver:
    """A handler that remembers what it was asked, and that can be held in the middle of a call."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self.prepared: set[str] = set()
        self.answers: dict[str, PrepareResult] = {}
        self.gates: dict[str, threading.Event] = {}
        self.entered: dict[str, threading.Event] = {}
        self.raises: dict[str, Exception] = {}
        self._lock = threading.Lock()

    def hold(self, uid: str) -> threading.Event:
        """Makes the next calls about this claim wait for the returned event; ``entered[uid]`` says when one waits."""
        self.entered[uid] = threading.Event()
        self.gates[uid] = threading.Event()
        return self.gates[uid]

    def prepare(self, claims: Sequence[Claim]) -> Mapping[str, PrepareResult]:
        return {claim.ref.uid: self._prepare(claim) for claim in claims if self._enter("prepare", claim.ref.uid)}

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, PrepareError | None]:
        done: dict[str, PrepareError | None] = {}
        for one in claims:
            self._enter("unprepare", one.uid)
            self.prepared.discard(one.uid)
            answer = self.answers.get(f"un-{one.uid}")
            done[one.uid] = answer if isinstance(answer, PrepareError) else None
        return done

    def _enter(self, kind: str, uid: str) -> bool:
        with self._lock:
            self.log.append((kind, uid))
        if uid in self.gates:
            self.entered[uid].set()
            assert self.gates[uid].wait(30), "the test never opened the gate"
        if uid in self.raises:
            raise self.raises[uid]
        return True

    def _prepare(self, claim: Claim) -> PrepareResult:
        if claim.ref.uid in self.answers:
            return self.answers[claim.ref.uid]
        self.prepared.add(claim.ref.uid)
        return [device_of(claim.ref.uid)]


def device_of(uid: str) -> PreparedDevice:
    return PreparedDevice(("nic/fast",), f"{NODE}/{DRIVER}", "eth1", (f"{DRIVER}/claim={uid}",), share_id="share-1")


class Recorder(NullObserver):
    """An observer that keeps the ends of RPCs and the kubelet's words."""

    def __init__(self) -> None:
        self.rpcs: list[tuple[str, str]] = []
        self.queued: list[float] = []
        self.words: list[tuple[bool, str]] = []

    def rpc(self, operation: str, *, seconds: float, queued_seconds: float, outcome: str) -> None:
        assert 0 <= queued_seconds <= seconds
        self.rpcs.append((operation, outcome))
        self.queued.append(queued_seconds)

    def registered(self, *, ok: bool, error: str) -> None:
        self.words.append((ok, error))


class Node:
    """A kubelet's folders, an API server and a driver; makes plugins and talks to them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plugins_dir = root / "plugins"
        self.registry_dir = root / "plugins_registry"
        self.api = FakeApi()
        self.driver = Driver()
        self.observer = Recorder()

    def plugin(self, *, handler: object = None, **options: object) -> Plugin:
        settings: dict[str, object] = {
            "client": self.api,
            "plugins_dir": self.plugins_dir,
            "registry_dir": self.registry_dir,
            "observer": self.observer,
        }
        return Plugin(DRIVER, NODE, handler or self.driver, **(settings | options))  # type: ignore[arg-type]

    @property
    def dra_socket(self) -> Path:
        return self.plugins_dir / DRIVER / "dra.sock"

    @property
    def registration_socket(self) -> Path:
        return self.registry_dir / f"{DRIVER}-reg.sock"

    @contextmanager
    def stub(self) -> Iterator[dra_v1_pb2_grpc.DRAPluginStub]:
        with grpc.insecure_channel(f"unix:{self.dra_socket}") as channel:
            yield dra_v1_pb2_grpc.DRAPluginStub(channel)


def prepare_request(*refs: ClaimRef) -> dra_v1_pb2.NodePrepareResourcesRequest:
    return dra_v1_pb2.NodePrepareResourcesRequest(claims=wire(*refs))


def unprepare_request(*refs: ClaimRef) -> dra_v1_pb2.NodeUnprepareResourcesRequest:
    return dra_v1_pb2.NodeUnprepareResourcesRequest(claims=wire(*refs))


def wire(*refs: ClaimRef) -> list[dra_v1_pb2.Claim]:
    return [dra_v1_pb2.Claim(namespace=one.namespace, name=one.name, uid=one.uid) for one in refs]
