"""Let methods of MLflow's store share one database transaction."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def one_transaction(store: Any) -> Iterator[Any]:
    """Yield a store whose methods write in one transaction, which is committed at the end.

    Each method of MLflow's store opens a session with ``ManagedSessionMaker``, and commits it. The yielded
    copy of the store gives all methods one session. So the rows are made by MLflow's own code, which differs
    from version to version.

    Raises:
        MlflowException: a method failed, or has rolled back what the methods before it wrote. Nothing is
            written.
    """
    from sqlalchemy import event

    sessions: list[Any] = []
    undone: list[Any] = []

    with ExitStack() as opened:

        @contextmanager
        def shared(*args: Any, **options: Any) -> Iterator[Any]:
            if not sessions:
                session = opened.enter_context(store.ManagedSessionMaker(*args, **options))
                event.listen(session, "after_rollback", undone.append)
                sessions.append(session)
            yield sessions[0]

        batch = copy.copy(store)  # other users of the store keep their own sessions
        batch.ManagedSessionMaker = shared
        yield batch
        if undone:
            raise RuntimeError("MLflow has rolled back a transaction of several scores")
