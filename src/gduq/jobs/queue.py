"""`Todo`: cells that wait for their turn, and for those they need."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

from gduq.errors import InputError

__all__ = ["Todo"]


class Todo:
    """Numbers of cells in order, each once all it needs have ended.

    Args:
        count: How many cells there are.
        needs: For every cell the numbers of those that must end first; empty: none waits.

    Example:
        >>> todo = Todo(3, [[2], [], []])
        >>> todo.take(), todo.take(), todo.ready, len(todo)
        (1, 2, 0, 1)
        >>> todo.ended(2)
        >>> todo.take(), len(todo)
        (0, 0)
    """

    def __init__(self, count: int, needs: Sequence[Sequence[int]] = ()) -> None:
        if needs and len(needs) != count:
            raise InputError(f"needs of all {count} cells", f"{len(needs)} of them")
        self._order: TopologicalSorter[int] = TopologicalSorter()
        for i in range(count):
            self._order.add(i)
        for i, before in enumerate(needs):
            if not all(0 <= j < count for j in before):
                raise InputError(f"needs from 0 to {count - 1}", list(before))
            self._order.add(i, *before)
        try:
            self._order.prepare()
        except CycleError as error:
            raise InputError("cells that can be put in order", f"a circle: {error}") from None
        self._ready = deque(self._order.get_ready())
        self._left = count

    def __len__(self) -> int:
        return self._left

    @property
    def ready(self) -> int:
        """How many could start now."""
        return len(self._ready)

    def take(self) -> int:
        """The next one; there must be one that is ready."""
        self._left -= 1
        return self._ready.popleft()

    def ended(self, i: int) -> None:
        """Cell i is over, done or failed: those that waited for it may be ready."""
        self._order.done(i)
        self._ready.extend(self._order.get_ready())
