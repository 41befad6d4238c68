"""Batches gathered ahead of the step that needs them, in threads; their order and content are those without."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

__all__ = ["Ahead"]

Task = TypeVar("Task")
Result = TypeVar("Result")


class Ahead(Generic[Task, Result]):
    """f(a), f(b), f(c), … in order, with the next few already being computed in threads.

    An error of f(a) is raised when its turn comes.

    Args:
        work: f, which several threads may call at once.
        threads: how many; 0 computes each when it is asked for.
    """

    def __init__(self, work: Callable[[Task], Result], threads: int):
        self.work, self.threads = work, threads

    def __call__(self, tasks: Iterable[Task]) -> Generator[tuple[Task, Result]]:
        """Each task with its result."""
        if not self.threads:
            for task in tasks:
                yield task, self.work(task)
            return
        waiting: deque[tuple[Task, Future[Result]]] = deque()
        pool = ThreadPoolExecutor(self.threads, "ahead")
        try:
            for task in tasks:
                waiting.append((task, pool.submit(self.work, task)))
                if len(waiting) > 2 * self.threads:
                    first, result = waiting.popleft()
                    yield first, result.result()
            while waiting:
                first, result = waiting.popleft()
                yield first, result.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
