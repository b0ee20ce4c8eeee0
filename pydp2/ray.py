"""Run a service on a Ray cluster: Ray starts, places and replaces processes; pydp2 keeps order and ledger
(docs/hosts.md, "With Ray").

One actor holds the server, the others each hold the workers of a host. Samples never enter Ray's object store: they go
over pydp2's own encrypted connections. Needs the extra ``ray``.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Unpack

import pydp2
from pydp2.api.sources import Files, Source, resolve_source
from pydp2.api.worker_host import check_codec
from pydp2.errors import Error, HostRefused, OptionError, ServiceLost, ServiceUnreachable
from pydp2.options.job_options import JobKeywords
from pydp2.options.service_options import ServiceKeywords
from pydp2.options.tables import SERVICE_OPTIONS, check_keywords, takes
from pydp2.providers.address import address_of
from pydp2.system.log_events import LogEvent
from pydp2.system.log_writer import write_event
from pydp2.transport.key_files import ConnectionFile

NAMESPACE = "pydp2"
"""Ray namespace of the actors."""
_PATIENCE = 60.0  # seconds without a service after which a host asks the actor for it again
_RETRY_SECONDS = 1.0
_WATCH_SECONDS = 0.5  # seconds between two checks whether the server runs
_AGAIN_SECONDS = 3.0  # seconds until Ray repeats a failed start; trainers wait for 30 s
_START_SECONDS = 120.0
_LEAVE_SECONDS = 30.0
_END_SECONDS = 15.0
_CONCURRENT = 16  # calls of one actor at a time


# -- functions for programs --------------------------------------------------------------------------------------------
@takes(SERVICE_OPTIONS)
def launch(  # noqa: PLR0913 - as pydp2.launch, and what Ray is to know
    files: Files | Source,
    provider: str | Any = None,
    *,
    name: str = "default",
    hosts: int | Literal["auto"] = 1,
    workers_per_host: int = 1,
    max_hosts: int = 64,
    args: Mapping[str, Any] | None = None,
    is_train: bool | None = None,
    root: str | os.PathLike[str] | None = None,
    resources: Mapping[str, float] | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    scale_seconds: float = 30.0,
    compress: str | None = None,
    row_server: bool = False,
    **options: Unpack[ServiceKeywords],
) -> RayService:
    """Start a service on the Ray cluster of this program, and the hosts that run its workers.

    The server runs on this node, in an actor named ``name``; it lives until :meth:`RayService.close`, also when this
    program ends. A host that is lost is replaced by Ray. With ``state_dir`` Ray may choose another node for the server.

    Args:
        files, provider, args, is_train: as in :func:`pydp2.launch`. The list is read here; the provider must be
            importable on each node, with ``runtime_env={"working_dir": "."}`` for instance.
        root: working directory of the workers on each node; default: that of this program, or with a ``working_dir`` in
            ``runtime_env`` the one that Ray unpacks.
        name: name of the service, for :func:`connect`.
        hosts: number of actors with workers; "auto": as many as ``stats()["scaling"]`` wants, from 1 to ``max_hosts``.
        workers_per_host: number of worker processes of each host, which takes as many CPUs of Ray.
        resources: other Ray resources of each host, such as ``{"CPU": 8, "io": 1}``.
        runtime_env: runtime environment of Ray for all actors.
        scale_seconds: seconds between two updates of the number of hosts.
        compress: ``"zstd"`` compresses the samples that workers send, for a slow network; default: no compression.
        row_server: rows stay on the node of their workers, and trainers fetch them there; see docs/hosts.md.
        options: those of :func:`pydp2.launch` but ``workers``, ``connection``, ``keys`` and ``advertise``. With
            ``state_dir`` (a folder that all nodes see) and ``bind`` with a port, Ray starts a lost server again.

    Raises:
        OptionError: an option is not valid, or Ray decides about it; or Ray is not installed.
        ServiceUnreachable: the server did not start.
        Error: the errors of :func:`pydp2.launch`.
    """
    check_keywords(launch, options)
    ray = _ray()
    taken = sorted({"workers", "connection", "keys", "advertise", "worker_bind"} & {*options})
    if taken:
        raise OptionError(f"{taken[0]} is decided by Ray; leave it out, and say hosts and workers_per_host")
    if options.get("page") is not None or options.get("page_samples"):
        raise OptionError("page shows services of one machine; leave it out, stats() has the same figures on Ray")
    if hosts != "auto" and (isinstance(hosts, bool) or not isinstance(hosts, int) or hosts < 1):
        raise OptionError(f"hosts must be a number from 1 on, or 'auto', got {hosts!r}")
    check_codec(compress)
    if not ray.is_initialized():
        ray.init()
    served = resolve_source(files, provider, args, is_train, root)
    shipped = root is None and bool(runtime_env and runtime_env.get("working_dir"))
    plan = {
        "entries": list(served.files),
        "provider": address_of(served.provider),
        "args": dict(served.args),
        "is_train": served.is_train,
        "root": None if shipped else str(served.root),
        "options": dict(options),
        "hosts": hosts,
        "workers_per_host": workers_per_host,
        "max_hosts": max_hosts,
        "resources": dict(resources or {}),
        "runtime_env": dict(runtime_env or {}),
        "scale_seconds": scale_seconds,
        "compress": compress,
        "row_server": row_server,
        "argv": list(sys.argv),
    }
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    restarts = bool(options.get("state_dir"))  # also on another node, if this one is lost
    # Without affinity, Ray places actors without CPUs on any node, where trainers of this node could share no memory.
    this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=restarts)
    actor = (
        ray.remote(_ServerActor)
        .options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            scheduling_strategy=this_node,
            max_restarts=-1 if restarts else 0,
            max_concurrency=_CONCURRENT,
            runtime_env=dict(runtime_env or {}) or None,
        )
        .remote(name, plan)
    )
    service = RayService(name, actor)
    try:
        error = ray.get(actor.start_error.remote(), timeout=_START_SECONDS)
    except Exception as failed:
        service.close()
        raise ServiceUnreachable(f"the server of {name!r} did not start on the Ray cluster: {failed}") from None
    if error is not None:
        service.close()
        raise pydp2.errors.from_wire(error)
    return service


def connect(
    name: str = "default",
    *,
    job: str = "default",
    rank: int | None = None,
    world_size: int | None = None,
    share_along: tuple[int, int] | None = None,
    timeout: float = 300.0,
    **options: Unpack[JobKeywords],
) -> pydp2.Client:
    """Attach to the service ``name`` of this Ray cluster as a trainer.

    Inside a Ray Train worker, rank and world size are those of its context. ``timeout`` includes the time until the
    first host has joined. The other arguments, and the errors, are those of :func:`pydp2.connect`.
    """
    if rank is None and world_size is None and share_along is None:
        rank, world_size = _train_rank()
    with _connection_file(_find(name), "trainer") as file:
        return pydp2.connect(
            file, job=job, rank=rank, world_size=world_size, share_along=share_along, timeout=timeout, **options
        )


class RayService:
    """Service on a Ray cluster, under its ``name``."""

    def __init__(self, name: str, actor: Any = None) -> None:
        self.name = name
        self._actor = _find(name) if actor is None else actor

    def connect(self, **options: Unpack[JobKeywords]) -> pydp2.Client:
        """Attach as a trainer; see :func:`connect`."""
        return connect(self.name, **options)

    def stats(self) -> dict[str, Any]:
        """Return the statistics of the service, with ``"ray"``: a dict with the number of ``"hosts"`` that shall run,
        and a list of ``"errors"`` of hosts."""
        found: dict[str, Any] = _ray().get(self._actor.stats.remote(), timeout=_END_SECONDS)
        return found

    def close(self) -> None:
        """End the service and its hosts."""
        ray = _ray()
        with contextlib.suppress(Exception):  # the actor may have ended, and cannot answer
            ray.get(self._actor.close.remote(), timeout=_END_SECONDS)
        with contextlib.suppress(Exception):
            ray.kill(self._actor)

    def __enter__(self) -> RayService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- actors ------------------------------------------------------------------------------------------------------------
class _ServerActor:
    """Actor that owns the server of a service and the actors with its workers: when it ends, they end.

    Ray restarts actors, but not processes that they have started. So if the server is lost, this actor ends too, and
    Ray starts both again.
    """

    def __init__(self, name: str, plan: dict[str, Any]) -> None:
        self._name, self._plan = name, plan
        self._folder = tempfile.TemporaryDirectory(prefix="pydp2-ray-")
        self._hosts: list[Any] = []
        self._failed: dict[str, Any] | None = None
        self._service: pydp2.Service | None = None
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []  # threads that end once ``_over`` is set
        try:
            self._service = self._launch()
            self._resize(1 if plan["hosts"] == "auto" else plan["hosts"])
        except Exception as error:  # start_error() returns it to the program that waits for this actor
            known = error if isinstance(error, Error) else ServiceUnreachable(f"{type(error).__name__}: {error}")
            self._failed = pydp2.errors.to_wire(known)
            if _was_restarted():  # after a restart, no program is waiting
                self._run(self._try_again)
            return
        if plan["hosts"] == "auto":
            self._run(self._follow)
        if plan["options"].get("state_dir"):
            self._run(self._watch)

    def _run(self, what: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=what, daemon=True))
        self._threads[-1].start()

    def _launch(self) -> pydp2.Service:
        plan, options = self._plan, dict(self._plan["options"])
        sys.argv[:] = plan["argv"]  # workers get the arguments of this process, but need those of the program
        options.setdefault("bind", f"tcp://{_ray().util.get_node_ip_address()}:*")
        return pydp2.launch(
            plan["entries"],
            plan["provider"],
            args=plan["args"],
            is_train=plan["is_train"],
            root=plan["root"],
            workers=0,
            connection=self._file,
            **options,
        )

    @property
    def _file(self) -> Path:
        return Path(self._folder.name) / "run.json"

    def start_error(self) -> dict[str, Any] | None:
        """Return the error with which the service did not start, as plain data; None if it started."""
        return self._failed

    def _started(self) -> pydp2.Service:
        """Return the service. Raises the error with which it did not start."""
        if self._failed is not None:
            raise pydp2.errors.from_wire(self._failed)
        assert self._service is not None
        return self._service

    def connection(self, role: str) -> dict[str, Any]:
        """Return addresses and keys for ``role``. Raises the error with which the service did not start."""
        self._started()
        found = ConnectionFile.read(self._file)
        pair = found.keys[role]
        addresses = (found.address, found.host_address, found.local_address)
        return {"addresses": addresses, "keys": (pair.public, pair.secret)}

    def stats(self) -> dict[str, Any]:
        """Return the statistics of the service. Raises the error with which it did not start, and ServiceLost once its
        server has ended."""
        service = self._started()
        if (status := service.poll()) is not None:
            why = service.failure() or f"its process ended with exit status {status}"
            raise ServiceLost(f"the server of {self._name!r} has ended: {why}")
        ray = _ray()
        asked = [host.error.remote() for host in self._hosts]
        answers, _ = ray.wait(asked, num_returns=len(asked), timeout=1.0)  # some actors may still wait for resources
        errors = []
        for answer in answers:
            with contextlib.suppress(Exception):  # Ray is just replacing this actor
                errors.append(ray.get(answer))
        actors = {"hosts": len(asked), "errors": [error for error in errors if error]}
        return service.stats() | {"ray": actors}

    def _resize(self, count: int) -> None:
        """Start or end actors, so that there are ``count`` hosts."""
        ray, plan = _ray(), self._plan
        while len(self._hosts) < count:
            resources = dict(plan["resources"])
            cpus = resources.pop("CPU", plan["workers_per_host"])
            me = ray.get_actor(self._name, namespace=NAMESPACE)
            self._hosts.append(
                ray.remote(_HostActor)
                .options(
                    num_cpus=cpus,
                    resources=resources or None,
                    max_restarts=-1,
                    scheduling_strategy="SPREAD",
                    runtime_env=plan["runtime_env"] or None,
                    max_concurrency=_CONCURRENT,
                )
                .remote(me, plan["workers_per_host"], plan["root"], plan["compress"], plan["row_server"])
            )
        leaving, self._hosts = self._hosts[count:], self._hosts[:count]
        for host in leaving:
            threading.Thread(target=_let_go, args=(host,), daemon=True).start()

    def _follow(self) -> None:
        """Keep the number of hosts at the number that the wanted workers need."""
        plan = self._plan
        while not self._over.wait(plan["scale_seconds"]):
            with contextlib.suppress(Error):
                wanted = self._started().stats()["scaling"]["wanted"]
                hosts = math.ceil(wanted / plan["workers_per_host"])
                self._resize(max(1, min(plan["max_hosts"], hosts)))

    def _watch(self) -> None:
        """End this actor once its server has ended, unless close() ended it."""
        service = self._started()
        while service.poll() is None:
            if self._over.wait(_WATCH_SECONDS):
                return
        if not self._over.wait(_RETRY_SECONDS):  # limits the rate of restarts; and close() may have ended the server
            why = service.failure() or f"its process ended with exit status {service.poll()}"
            write_event(f"the server of {self._name!r} is gone, and Ray starts it again: {why}", LogEvent.RAY_RESTART)
            self._leave()

    def _try_again(self) -> None:
        """End this actor, whose server did not start, after a while in which callers get the error."""
        assert self._failed is not None
        why = pydp2.errors.from_wire(self._failed)
        text = f"the server of {self._name!r} did not start; Ray tries again in {_AGAIN_SECONDS:g} s: {why}"
        write_event(text, LogEvent.RAY_RESTART)
        if not self._over.wait(_AGAIN_SECONDS):
            self._leave()

    def _leave(self) -> None:
        """End this process at once, because Ray does not restart an actor that ended in order."""
        try:
            if self._service is not None:
                self._service.close()
            self._folder.cleanup()  # the folder has keys
        finally:
            os._exit(1)

    def close(self) -> None:
        """End the service; its hosts end with it."""
        self._over.set()
        if self._service is not None:
            self._service.close()
        for thread in self._threads:  # otherwise one could start a host after the loop below
            thread.join(_END_SECONDS)
        ray = _ray()
        for host in self._hosts:
            with contextlib.suppress(Exception):
                ray.kill(host)
        self._folder.cleanup()


class _HostActor:
    """Actor with the workers of one host: it runs an agent in a process, which ends when this actor ends."""

    def __init__(self, server: Any, workers: int, root: str | None, compress: str | None, row_server: bool) -> None:
        self._server, self._workers, self._root = server, workers, root
        self._compress = compress
        self._row_server = f"tcp://{_ray().util.get_node_ip_address()}:*" if row_server else None
        self._host: pydp2.WorkerHost | None = None
        self._error = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """Run workers until :meth:`leave`. A service that was restarted has new keys, so ask for them each time."""
        while not self._over.is_set():
            try:
                with _connection_file(self._server, "worker") as file:
                    self._host = pydp2.WorkerHost(
                        file,
                        workers=self._workers,
                        root=self._root,
                        patience=_PATIENCE,
                        name=_node_name(),
                        compress=self._compress,
                        row_server=self._row_server,
                    )
                    self._host.run()
            except HostRefused as error:
                self._error = str(error)
                return
            except Exception as error:  # Ray may just be restarting the actor of the server
                self._error = str(error)
            self._over.wait(_RETRY_SECONDS)

    def error(self) -> str:
        """Return the reason why this host was turned away, or its last error as text; "" if there is none."""
        return self._error

    def leave(self) -> None:
        """Let the workers finish the files that they are reading, and return when they have ended."""
        self._over.set()
        if self._host is not None:
            self._host.leave()
        self._thread.join(_LEAVE_SECONDS)


def _let_go(host: Any) -> None:
    ray = _ray()
    with contextlib.suppress(Exception):
        ray.get(host.leave.remote(), timeout=_LEAVE_SECONDS + _END_SECONDS)
    with contextlib.suppress(Exception):
        ray.kill(host)


# -- inside ------------------------------------------------------------------------------------------------------------
def _ray() -> Any:
    """Return the module ray. Raises OptionError if it is not installed."""
    try:
        import ray
    except ImportError:
        raise OptionError("pydp2.ray needs Ray, which is not installed; pip install 'ray>=2.40'") from None
    return ray


def _was_restarted() -> bool:
    """Return True if Ray has restarted the actor of this process."""
    with warnings.catch_warnings():  # Ray warns of a function that it uses itself for the answer
        warnings.simplefilter("ignore")
        return bool(_ray().get_runtime_context().was_current_actor_reconstructed)


def _find(name: str) -> Any:
    """Return the actor of the service ``name``. Raises ServiceUnreachable."""
    ray = _ray()
    if not ray.is_initialized():
        ray.init(address="auto")
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        raise ServiceUnreachable(
            f"no service {name!r} is on this Ray cluster; start one with pydp2.ray.launch(…, name={name!r})"
        ) from None


@contextlib.contextmanager
def _connection_file(server: Any, role: str) -> Iterator[Path]:
    """Return a context with the path of a private file with addresses and keys for ``role``; it removes the file."""
    from pydp2.transport.keys import KeyPair

    found = _ray().get(server.connection.remote(role), timeout=_START_SECONDS)
    with tempfile.TemporaryDirectory(prefix="pydp2-ray-") as folder:
        file = Path(folder) / "run.json"
        address, host_address, local_address = found["addresses"]
        ConnectionFile(address, {role: KeyPair(*found["keys"])}, host_address, local_address).write(file)
        yield file


def _train_rank() -> tuple[int | None, int | None]:
    """Return rank and world size of a Ray Train worker; None, None elsewhere."""
    if "ray.train" not in sys.modules:  # a Ray Train worker has imported it
        return None, None
    from ray.train import get_context

    with contextlib.suppress(Exception):  # this process is no Ray Train worker
        context = get_context()
        return context.get_world_rank(), context.get_world_size()
    return None, None


def _node_name() -> str:
    ray = _ray()
    return f"{ray.util.get_node_ip_address()}/{ray.get_runtime_context().get_node_id()[:8]}"


__all__ = ["RayService", "connect", "launch"]
