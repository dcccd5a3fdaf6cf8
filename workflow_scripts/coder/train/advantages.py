"""Credit assignment: rewards of one group's episodes -> one advantage per sampled turn. Pure numpy.

A group is K episodes of one task from one seed; a developer turn t (from 1) makes a draft that scores r_t, a critic
turn t comments on draft t. `own_delta`, the default, credits

    developer  A_it = [ (R_i - mean_j R_j)  +  lambda (d_it - mean_{j reaching t} d_jt) ] / (scale + 1e-4)
    critic     A_it = ( c_it - mean_{j reaching t} c_jt ) / (scale + 1e-4)

    R_i   outcome of episode i: its last draft's reward, or its best's (`outcome`)
    d_it  r_it - r_i,t-1 with r_i0 = 0: what this very draft gained; the d of an episode sum to its last reward, so they
          are a potential-based shaping of the outcome (Ng et al. 1999)
    c_it  d_i,t+1: what the draft written after this critique gained; for a final DONE, -done_headroom (1 - r_t)
    scale sqrt(s_R^2 + lambda^2 s_d^2) with unbiased variances over the group, or 1 (`scale="none"`, Dr. GRPO)

With lambda = 0 the developer's advantages are TRL's (R - mean) / (std + 1e-4), std with Bessel's correction. Each
episode counts once in every mean and variance, however many turns it has. The baseline of d_t is taken per turn index
because drafts differ by kind (a first draft gains much, a fifth little) and a common one would push all first turns up
and all later ones down. Such baselines are biased where later rewards are summed into the return and the policy decides
when to stop (the episode length then carries a bonus); here a turn is credited with its own gain only, so the baseline
of turn t is independent of its action given that turn t was reached. A turn that one episode alone reached gets no
shaping.

`original` reproduces the formula of the trainer this one succeeds, for comparison: R_T + lambda (R_T - r_t), normalised
over all turns of the group flattened; a critic turn has the advantage of the next developer turn, a DONE the last
one's. It rewards worse earlier drafts (r = [.1, .8] credits turn 1 with more than [.7, .8] does).

Left out: value networks, discounting (the horizon is five turns), length costs other than `turn_cost`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...failures import InvalidInput

Floats = npt.NDArray[np.float64]
Credit = Literal["own_delta", "original"]
Outcome = Literal["last", "best"]
Scale = Literal["group", "none"]

EPSILON = 1e-4
"""Added to the standard deviation, as in TRL."""


@dataclass(frozen=True, slots=True)
class Member:
    """One episode as credit assignment sees it.

    Attributes:
        rewards: r_1 … r_T of its drafts, T >= 1, each in [0, 1].
        critiques: number of critic turns. T - 1 of them led to the next draft; one more is the final DONE.
    """

    rewards: tuple[float, ...]
    critiques: int


@dataclass(frozen=True, slots=True)
class GroupCredit:
    """Advantages of a group, float64.

    Attributes:
        developer, critic: per member an array with one advantage per turn of that role; all 0 where the role is
            skipped.
        skipped: roles whose credits vary by less than `min_range`: they carry no signal and must not be trained on.
    """

    developer: tuple[Floats, ...]
    critic: tuple[Floats, ...]
    skipped: frozenset[str]


@dataclass(frozen=True, slots=True)
class CreditRule:
    """How a group is credited.

    Attributes:
        kind: `own_delta` or `original`.
        shaping: lambda, the weight of a turn's own gain (of R_T - r_t in `original`).
        outcome: whether an episode is worth its last or its best draft. With `best`, r_t is the best reward so far.
        scale: divide by the group's standard deviation, or not.
        min_range: a role whose centred credits span less than this is skipped.
        done_headroom: share of the head-room 1 - r_t that a DONE is taken to forgo.
        turn_cost: subtracted from the critic's credit for every critique that asks for another draft.
    """

    kind: Credit = "own_delta"
    shaping: float = 0.2
    outcome: Outcome = "last"
    scale: Scale = "group"
    min_range: float = 1e-3
    done_headroom: float = 0.1
    turn_cost: float = 0.0


def group_credit(members: Sequence[Member], rule: CreditRule = CreditRule()) -> GroupCredit:
    """Advantages of one group.

    Raises InvalidInput for fewer than two members, no rewards, rewards outside [0, 1] (NaN included), or a number of
    critiques that does not fit the number of drafts.
    """
    _check(members)
    rewards = [np.asarray(member.rewards, dtype=np.float64) for member in members]
    if rule.outcome == "best":
        rewards = [np.maximum.accumulate(r) for r in rewards]
    assign = _own_delta if rule.kind == "own_delta" else _original
    developer, critic, spans = assign(members, rewards, rule)
    skipped = frozenset(role for role, span in spans.items() if span < rule.min_range)
    if "developer" in skipped:
        developer = [np.zeros_like(a) for a in developer]
    if "critic" in skipped:
        critic = [np.zeros_like(a) for a in critic]
    return GroupCredit(tuple(developer), tuple(critic), skipped)


def _check(members: Sequence[Member]) -> None:
    if len(members) < 2:
        raise InvalidInput(
            "group", "members", "at least 2 finished episodes", len(members), "rerun the failed episodes"
        )
    for number, member in enumerate(members):
        values = np.asarray(member.rewards, dtype=np.float64)
        if not values.size or not ((values >= 0) & (values <= 1)).all():  # NaN compares false
            raise InvalidInput(
                f"member {number}", "rewards", "one or more numbers in [0, 1]", member.rewards, "rerun this episode"
            )
        if member.critiques not in (values.size - 1, values.size, 0):
            raise InvalidInput(
                f"member {number}",
                "critiques",
                f"{values.size - 1}, or {values.size} with a final DONE, or 0 without a critic",
                member.critiques,
                "rerun this episode",
            )


Assigned = tuple[list[Floats], list[Floats], dict[str, float]]


def _own_delta(members: Sequence[Member], rewards: list[Floats], rule: CreditRule) -> Assigned:
    outcome = np.array([r[-1] for r in rewards])
    outcome = outcome - outcome.mean()
    gains = [np.diff(r, prepend=0.0) for r in rewards]
    shaping = [rule.shaping * g for g in _centred_by_turn(gains)]
    signal = [o + s for o, s in zip(outcome, shaping, strict=True)]
    developer = _scaled(signal, np.sqrt(_variance([np.array([o]) for o in outcome]) + _variance(shaping)), rule)

    caused = []
    for member, r, g in zip(members, rewards, gains, strict=True):
        credit = g[1:][: member.critiques] - rule.turn_cost
        if member.critiques == len(r):
            credit = np.append(credit, -rule.done_headroom * (1 - r[-1]))
        caused.append(credit)
    caused = _centred_by_turn(caused)
    critic = _scaled(caused, np.sqrt(_variance(caused)), rule)
    return developer, critic, {"developer": _span(signal), "critic": _span(caused)}


def _original(members: Sequence[Member], rewards: list[Floats], rule: CreditRule) -> Assigned:
    returns = [r[-1] + rule.shaping * (r[-1] - r) for r in rewards]
    flat = np.concatenate(returns)
    developer = [(g - flat.mean()) / (flat.std() + 1e-8) for g in returns]
    critic = [
        a[np.minimum(np.arange(1, member.critiques + 1), len(a) - 1)]
        for member, a in zip(members, developer, strict=True)
    ]
    return developer, critic, {"developer": float(np.ptp(flat)), "critic": _span(critic)}


def _centred_by_turn(values: list[Floats]) -> list[Floats]:
    """Each value minus the mean over the members that reached its turn; 0 where one member alone did."""
    longest = max(len(v) for v in values)
    table = np.full((len(values), longest), np.nan)
    for row, v in zip(table, values, strict=True):
        row[: len(v)] = v
    means = [np.mean(column[~np.isnan(column)]) for column in table.T]  # every column has a value
    return [v - np.array(means[: len(v)]) for v in values]


def _variance(centred: list[Floats]) -> float:
    """Unbiased variance of centred values; the turns of a member share its one vote."""
    present = [float(np.mean(v**2)) for v in centred if len(v)]
    return float(np.sum(present) / (len(present) - 1)) if len(present) > 1 else 0.0


def _scaled(values: list[Floats], std: float, rule: CreditRule) -> list[Floats]:
    return [v / (std + EPSILON) for v in values] if rule.scale == "group" else values


def _span(values: list[Floats]) -> float:
    flat = np.concatenate(values) if values else np.zeros(0)
    return float(np.ptp(flat)) if flat.size else 0.0
