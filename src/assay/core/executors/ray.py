"""Jobs run as Ray tasks, on this machine or on a cluster (extra `ray`).

Tasks return their messages as values and only the driver writes the store, so no shared disk is needed; a task whose
worker or node is lost is run again by Ray. At most two tasks per slot are in flight.

A Ray that is started here listens on the loopback interface alone, asks for a token that only this process knows, and
has no dashboard. What a cluster must provide is in docs/scaling.md.
"""

import functools
import logging
import os
import secrets
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from assay.core.environment import environment_kept
from assay.core.errors import UserError
from assay.core.executors import executors
from assay.core.executors.base import GRACE, TICK, Began, Ended, Executor, Limit, Receive, Work, call, device_name


@executors.register("ray")
@dataclass(frozen=True, kw_only=True)
class Ray(Executor):
    """Ray tasks, on this machine or on a cluster (--ray-address)."""

    shares_disk: ClassVar[bool] = False

    address: str | None = None
    """The cluster, such as auto; none: Ray is started on this machine."""

    def slots(self) -> int:
        """Return what the cluster can work on at once: its cores, or its GPUs where a job needs one."""
        if self.workers or (self.address is None and not _import_ray().is_initialized()):
            return super().slots()  # our own Ray is started with as many
        with self.connected() as ray:
            found = ray.cluster_resources()
        scarce = min(("CPU", "GPU") if self.gpus else ("CPU",), key=lambda kind: found.get(kind, 0))
        if found.get(scarce, 0) < 1:
            warnings.warn(f"the Ray cluster has no {scarce} now: jobs wait until a node with one joins", stacklevel=2)
        return max(1, int(found.get(scarce, 0)))

    def run(self, fn: Work, jobs: Iterable[Any], emit: Receive, *, limit: Limit = lambda job: None) -> None:
        with self.connected() as ray:
            room = self.workers or 2 * self.slots()
            queue = iter(jobs)
            tasks = _Tasks(ray, fn, {"num_cpus": 1, "num_gpus": 1 if self.gpus else 0, "max_retries": self.retries})
            try:
                while True:
                    while len(tasks.flying) < room and (job := next(queue, None)) is not None:
                        tasks.start(job, limit(job))
                    if not tasks.flying:
                        return
                    for job, messages in tasks.look():
                        for message in messages:
                            emit(job, message)
            finally:
                for reference in tasks.flying:
                    ray.cancel(reference, force=True)

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """Connect to Ray while the block lasts. An existing connection is used, and left alone."""
        ray = _import_ray()
        if ray.is_initialized():
            yield ray
            return
        try:
            with environment_kept(), _sigterm_kept():
                if self.address is None:
                    _start_here(ray, self.slots(), self.gpus)
                else:
                    _connect(ray, f"no Ray cluster at --ray-address {self.address}", address=self.address)
            yield ray
        finally:
            ray.shutdown()


@dataclass
class _Tasks:
    """The tasks in flight, by the reference to what each will return: its job, its number and its limit."""

    ray: Any
    fn: Callable[..., None]
    options: dict[str, Any]
    flying: dict[Any, tuple[Any, int, float | None]] = field(default_factory=dict)
    count: int = 0

    def start(self, job: Any, limit: float | None) -> None:
        task = self.ray.remote(**self.options)(_collect)
        self.count += 1
        reference = task.remote(self.fn, job, self._clock if limit else None, self.count)
        self.flying[reference] = job, self.count, limit

    def look(self) -> list[tuple[Any, list[Any]]]:
        """Return the jobs that have ended, with all their messages."""
        limited = any(limit for _, _, limit in self.flying.values())
        done = self.ray.wait(list(self.flying), timeout=TICK if limited else None)[0]
        found = [(self.flying.pop(reference)[0], self._messages(reference)) for reference in done]
        return found + (self._overdue() if limited else [])

    @functools.cached_property
    def _clock(self) -> Any:
        """Actor on the driver's own node, so that it lives as long as the driver."""
        here = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            self.ray.get_runtime_context().get_node_id(), soft=False
        )
        return self.ray.remote(_Clock).options(num_cpus=0, scheduling_strategy=here).remote()

    def _messages(self, reference: Any) -> list[Any]:
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            return [Ended("lost", f"Ray gave up after {self.options['max_retries']} retries: {error}")]

    def _overdue(self) -> list[tuple[Any, list[Any]]]:
        """Return jobs that did not stop at their limit. A task waits in Ray's queue, so it reports itself when it
        began; cancelling by force kills its worker in any case, and Ray does not retry it."""
        ages = self.ray.get(self._clock.ages.remote())
        limited = ((reference, number, limit) for reference, (_, number, limit) in self.flying.items() if limit)
        late = {reference: limit for reference, number, limit in limited if ages.get(number, 0.0) > limit + GRACE}
        for reference in late:
            self.ray.cancel(reference, force=True)
        return [(self.flying.pop(reference)[0], [Ended.overdue(limit)]) for reference, limit in late.items()]


class _Clock:
    """A Ray actor that knows since when each limited task has been running."""

    def __init__(self) -> None:
        self.starts: dict[int, float] = {}

    def begin(self, number: int) -> None:
        self.starts[number] = time.monotonic()

    def ages(self) -> dict[int, float]:
        now = time.monotonic()
        return {number: now - start for number, start in self.starts.items()}


def _collect(fn: Callable[..., None], job: Any, clock: Any, number: int) -> list[Any]:
    """Return, on the Ray worker, every message of the job, then its end."""
    messages: list[Any] = []

    def emit(message: Any) -> None:
        if not isinstance(message, Began):
            messages.append(message)
        elif clock is not None:
            _import_ray().get(clock.begin.remote(number))

    ended = call(fn, job, emit)
    return [*messages, ended]


def _import_ray() -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ModuleNotFoundError:
        raise UserError("--executor ray needs Ray: install assay's extra `ray`, or pip install 'ray>=2.59'.") from None
    return ray


def _start_here(ray: Any, slots: int, gpus: tuple[int, ...]) -> None:
    """Start a Ray of our own that nobody else can reach: whoever reaches a Ray can run code in it.

    Ray reads these from the environment, and passes them on to its processes. It offers no other way to the loopback
    interface: an address of 127.0.0.1 is replaced by that of the machine."""
    from ray._private import ray_constants

    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"
    enabled, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False  # read when Ray was imported
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
        os.environ["RAY_AUTH_TOKEN"] = _token()  # otherwise Ray writes one into the home folder, readable by everybody
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(device_name, gpus))
    # "local": otherwise Ray would join any cluster that somebody has started on this machine.
    own = {"address": "local", "num_cpus": slots, "num_gpus": len(gpus), "include_dashboard": False}
    try:
        _connect(ray, "Ray does not start here", **own)
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = enabled
    if (where := ray.util.get_node_ip_address()) not in ("127.0.0.1", "::1"):
        raise UserError(f"Ray {ray.__version__} listens on {where}, open to the network: use --executor local.")


def _connect(ray: Any, trouble: str, **how: Any) -> None:
    try:
        ray.init(**how, logging_level=logging.ERROR, log_to_driver=False)
    except (ray.exceptions.RayError, ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        remedy = (
            "Start a cluster with `ray start --head`; if it has a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN."
        )
        raise UserError(f"{trouble}: {reason}. {remedy}") from None


@functools.cache
def _token() -> str:
    """Return one token per process: Ray reads it once, and sends the same ever after."""
    return secrets.token_hex(32)


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Restore our SIGTERM handler (command/cli.py): Ray replaces it by one that exits with 15."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as exit:
        if exit.code == signal.SIGTERM and callable(before):
            before(signal.SIGTERM, None)
        raise
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
