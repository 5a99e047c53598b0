"""Each way of asking for a fact gives that of an account in plain Python, for generated recordings.

The account (``tests.contracts.account``) was written from docs/ alone. What may differ is in
``tests.contracts.allowed``, with its reason. `make promises ARGS=--hypothesis-profile=nightly` checks 2,000
recordings.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from tests.contracts import asked
from tests.contracts.account import Recording
from tests.contracts.allowed import is_allowed
from tests.contracts.figures_told import (
    of_group,
    of_health,
    of_metrics,
    of_report,
    of_tail_sampling,
    of_timeline,
)
from tests.contracts.lists_told import of_groups, of_list, of_pages, of_runs, of_show, of_steps
from tests.contracts.made_spans import Made
from tests.contracts.recordings import recorded_by, recordings

_IS_NIGHTLY = settings.default is not None and settings.default.max_examples >= 200
_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]
_COMMANDS = settings(
    max_examples=330 if _IS_NIGHTLY else 1,
    phases=tuple(Phase) if _IS_NIGHTLY else (Phase.explicit,),
    suppress_health_check=_CHECKS,
)
"""A command takes a second. `make test` asks of one recording; a nightly run of 2,000, six in a table."""
_IN_MEMORY = settings(max_examples=2_000 if _IS_NIGHTLY else 25, suppress_health_check=_CHECKS)


_OF_A_SPOOL = (of_list, of_show, of_timeline, of_health)
_OF_A_TABLE = (of_groups, of_steps, of_group, of_report, of_pages)
_OF_ANY = (*_OF_A_SPOOL, *_OF_A_TABLE[:-1], of_runs)


@pytest.mark.timeout(7_200)  # a nightly run takes half an hour
@_COMMANDS
@given(spans=recordings(projects=12), is_table=st.booleans())
@example(spans=recorded_by(22), is_table=False)
@example(spans=recorded_by(22), is_table=True)
def test_commands_and_pages_give_the_figures_of_the_account(spans: list[Made], is_table: bool) -> None:
    """Trajectories, groups, steps, time and scores are those of the account, from a spool and from a table.

    `make test` asks each command of one of the two.
    """
    recording = Recording(spans)
    of_any = _OF_ANY if _IS_NIGHTLY else ()
    ways = dict.fromkeys((*of_any, *_OF_A_TABLE) if is_table else (*of_any, *_OF_A_SPOOL))
    with asked.places_of(spans) as places:
        source = places.table if is_table else places.spool
        told = [each for way in ways for each in way(source, recording)]
    assert [str(each) for each in told if not is_allowed(each)] == []


@_IN_MEMORY
@given(spans=recordings())
def test_metrics_and_tail_sampling_give_the_figures_of_the_account(spans: list[Made]) -> None:
    """What is measured while spans are recorded, and what decides about delivery, is what is told later."""
    recording = Recording(spans)
    told = [each for one in recording.trajectories for each in of_metrics(one)]
    told += [each for one in recording.trajectories for each in of_tail_sampling(one, recording)]
    assert [str(each) for each in told if not is_allowed(each)] == []
