"""Jobs as Ray tasks, on this machine or on a cluster (extra `ray`).

Tasks return their messages as values and only the driver writes the store, so no shared disk is needed; a task whose
worker or node is lost is run again by Ray. At most two tasks per CPU are in flight.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from assay.core.errors import UserError
from assay.core.executors import executors
from assay.core.executors.base import Emit, Ended, Executor, call


@executors.register("ray")
@dataclass(frozen=True, kw_only=True)
class Ray(Executor):
    """Ray tasks, on this machine or on a cluster (--ray-address)."""

    shares_disk: ClassVar[bool] = False

    address: str | None = None

    def run(self, fn: Callable[[Any, Emit], None], jobs: Iterable[Any], emit: Callable[[Any, Any], None]) -> None:
        ray = _import_ray()
        started = not ray.is_initialized()
        if started:
            _connect(ray, self.address, self.workers)
        try:
            self._run(ray, fn, jobs, emit)
        finally:
            if started:
                ray.shutdown()

    def _run(self, ray: Any, fn: Callable[..., None], jobs: Iterable[Any], emit: Callable[[Any, Any], None]) -> None:
        options = {"num_cpus": 1, "num_gpus": 1 if self.gpus else 0, "max_retries": self.retries}
        task = ray.remote(**options)(_collect)
        room = self.workers or 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
        queue = iter(jobs)
        flying: dict[Any, Any] = {}
        try:
            while True:
                while len(flying) < room and (job := next(queue, None)) is not None:
                    flying[task.remote(fn, job)] = job
                if not flying:
                    return
                for reference in ray.wait(list(flying))[0]:
                    job = flying.pop(reference)
                    for message in self._messages(ray, reference):
                        emit(job, message)
        finally:
            for reference in flying:
                ray.cancel(reference, force=True)

    def _messages(self, ray: Any, reference: Any) -> list[Any]:
        try:
            return ray.get(reference)
        except ray.exceptions.RayError as error:
            return [Ended("lost", f"Ray gave up after {self.retries} retries: {error}")]


def _collect(fn: Callable[..., None], job: Any) -> list[Any]:
    """On the Ray worker: every message of the job, then its end."""
    messages: list[Any] = []
    ended = call(fn, job, messages.append)
    return [*messages, ended]


def _import_ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError:
        raise UserError("--executor ray needs Ray: install assay's extra `ray`, or pip install 'ray>=2.40'.") from None
    return ray


def _connect(ray: Any, address: str | None, workers: int) -> None:
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    # "local": without it Ray would join whatever cluster somebody has started on this machine.
    own = {"address": "local", "num_cpus": workers or None, "include_dashboard": False}
    here = own if address is None else {"address": address}
    try:
        ray.init(**here, **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = f"no Ray cluster at --ray-address {address}" if address else "Ray does not start here"
        raise UserError(f"{where}: {error}. Start a cluster with `ray start --head`.") from None
