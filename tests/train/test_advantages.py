"""Credit assignment: worked examples, invariances, monotonicity, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from workflow_scripts.coder.train.advantages import EPSILON, CreditRule, Member, group_credit
from workflow_scripts.failures import InvalidInput

RAW = CreditRule(scale="none", min_range=0.0)


def members(*rewards: tuple[float, ...], done: tuple[bool, ...] | None = None) -> list[Member]:
    """Episodes with a critic turn between drafts, and a final DONE where `done` says so."""
    ends = done or (False,) * len(rewards)
    return [Member(r, len(r) - 1 + end) for r, end in zip(rewards, ends, strict=True)]


def test_worked_example() -> None:
    credit = group_credit(members((0.1, 0.8), (0.7, 0.8)), RAW)
    # Equal outcomes; the first draft gains .1 against .7, the second .7 against .1.
    np.testing.assert_allclose(credit.developer[0], [0.2 * (0.1 - 0.4), 0.2 * (0.7 - 0.4)])
    np.testing.assert_allclose(credit.developer[1], [0.2 * (0.7 - 0.4), 0.2 * (0.1 - 0.4)])
    np.testing.assert_allclose(credit.critic[0], [0.3])
    np.testing.assert_allclose(credit.critic[1], [-0.3])


def test_without_shaping_it_is_the_group_z_score() -> None:
    outcomes = np.array([0.1, 0.5, 0.4, 0.9])
    credit = group_credit([Member((0.3, r), 1) for r in outcomes], CreditRule(shaping=0.0))
    expected = (outcomes - outcomes.mean()) / (outcomes.std(ddof=1) + EPSILON)
    np.testing.assert_allclose([a[0] for a in credit.developer], expected)
    np.testing.assert_allclose([a[1] for a in credit.developer], expected)


def test_the_original_formula_prefers_worse_earlier_drafts_and_ours_does_not() -> None:
    worse, better = members((0.1, 0.8), (0.7, 0.8))
    for kind, sign in (("original", 1), ("own_delta", -1)):
        first, second = group_credit([worse, better], CreditRule(kind=kind, min_range=0.0)).developer  # type: ignore[arg-type]
        assert sign * (first[0] - second[0]) > 0, kind


def test_original_numbers() -> None:
    credit = group_credit(members((0.2, 0.6), (0.4, 0.5), done=(True, False)), CreditRule(kind="original"))
    returns = np.array([0.6 + 0.2 * 0.4, 0.6, 0.5 + 0.2 * 0.1, 0.5])
    expected = (returns - returns.mean()) / (returns.std() + 1e-8)
    np.testing.assert_allclose(np.concatenate(credit.developer), expected)
    np.testing.assert_allclose(credit.critic[0], expected[[1, 1]])  # the DONE has the last draft's
    np.testing.assert_allclose(credit.critic[1], expected[[3]])


def test_a_better_draft_never_earns_its_turn_less() -> None:
    """Before division by the group's scale, which a changed reward changes too (but never the order of credits)."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        group = [tuple(rng.uniform(0.05, 0.9, rng.integers(1, 6))) for _ in range(4)]
        before = group_credit(members(*group), RAW)
        member = int(rng.integers(4))
        turn = int(rng.integers(len(group[member])))
        changed = list(group[member])
        changed[turn] += 0.05
        after = group_credit(members(*group[:member], tuple(changed), *group[member + 1 :]), RAW)
        gain = after.developer[member][turn] - before.developer[member][turn]
        alone = turn + 1 < len(changed) and sum(len(g) > turn for g in group) == 1
        # A turn that nobody else reached has no shaping; before the last one, nothing of it depends on the draft then.
        assert gain >= -1e-12 if alone else gain > 0
        if turn and turn <= len(before.critic[member]):
            assert after.critic[member][turn - 1] - before.critic[member][turn - 1] >= -1e-12


def test_each_episode_counts_once_whatever_its_length() -> None:
    short = group_credit(members((0.2,), (0.8,)), CreditRule(shaping=0.0))
    long = group_credit(members((0.2,), (0.1, 0.3, 0.5, 0.7, 0.8)), CreditRule(shaping=0.0))
    np.testing.assert_allclose(long.developer[0], short.developer[0])
    np.testing.assert_allclose(long.developer[1], np.full(5, short.developer[1][0]))


def test_centred_and_permutation_equivariant() -> None:
    group = members((0.1, 0.4), (0.5,), (0.3, 0.2, 0.6), (0.9, 0.7), done=(True, True, False, False))
    credit = group_credit(group)
    again = group_credit(group[::-1])
    for a, b in zip(credit.developer, again.developer[::-1], strict=True):
        np.testing.assert_allclose(a, b)
    for a, b in zip(credit.critic, again.critic[::-1], strict=True):
        np.testing.assert_allclose(a, b)
    raw = group_credit(group, CreditRule(scale="none", shaping=0.0))
    assert abs(sum(a[0] for a in raw.developer)) < 1e-12


def test_no_variance_is_skipped_per_role() -> None:
    same = group_credit(members((0.4, 0.5), (0.4, 0.5)))
    assert same.skipped == {"developer", "critic"}
    assert all(not a.any() for a in (*same.developer, *same.critic))
    # Equal gains after the critiques, different pages: the critic has no signal, the developer has.
    assert group_credit(members((0.25, 0.5), (0.5, 0.75))).skipped == {"critic"}
    assert group_credit([Member((0.2,), 0), Member((0.7,), 0)]).skipped == {"critic"}


def test_a_nearly_equal_outcome_does_not_blow_shaping_up() -> None:
    credit = group_credit(members((0.1, 0.800), (0.7, 0.802)))
    assert max(np.abs(a).max() for a in credit.developer) < 2


def test_done_is_charged_the_headroom_it_forgoes() -> None:
    rule = CreditRule(scale="none", min_range=0.0)
    early, late = members((0.2,), (0.2, 0.3), done=(True, False))
    credit = group_credit([early, late], rule)
    assert credit.critic[0][0] < 0 < credit.critic[1][0]
    nearly = group_credit(members((0.99,), (0.99, 0.9), done=(True, False)), rule)
    assert nearly.critic[0][0] > 0 > nearly.critic[1][0]  # stopping beats a critique that spoils the page


def test_turn_cost_makes_useless_critiques_worse_than_stopping() -> None:
    group = members((0.9,), (0.9, 0.9), done=(True, False))
    free = group_credit(group, CreditRule(scale="none", min_range=0.0, done_headroom=0.0))
    costly = group_credit(group, CreditRule(scale="none", min_range=0.0, done_headroom=0.0, turn_cost=0.05))
    assert free.critic[0][0] == 0
    assert costly.critic[0][0] > 0 > costly.critic[1][0]


def test_best_outcome_ignores_later_worse_drafts() -> None:
    rule = CreditRule(outcome="best", scale="none", shaping=0.0)
    credit = group_credit(members((0.8, 0.1), (0.2, 0.4)), rule)
    np.testing.assert_allclose([a[-1] for a in credit.developer], [0.2, -0.2])


@pytest.mark.parametrize(
    ("group", "key"),
    [
        ([], "members"),
        ([Member((0.5,), 0)], "members"),
        ([Member((0.5,), 0), Member((), 0)], "rewards"),
        ([Member((0.5,), 0), Member((float("nan"),), 0)], "rewards"),
        ([Member((0.5,), 0), Member((1.5,), 0)], "rewards"),
        ([Member((0.5, 0.6), 3), Member((0.5,), 0)], "critiques"),
    ],
)
def test_bad_groups_are_refused(group: list[Member], key: str) -> None:
    with pytest.raises(InvalidInput) as error:
        group_credit(group)
    assert error.value.key == key
