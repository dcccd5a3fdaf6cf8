"""From scores of transitions and episodes to a row of the tables, and what a careful reader wants beside it.

The official numbers follow GUI-CC to the letter: a transition metric is averaged over the transitions of an episode,
then over episodes; a model failure scores 0 in every metric and stays in the fixed denominator; Overall is the
unweighted mean of the track's metrics and exists for the full task set only. One thing is stricter: while anything of a
row is missing through nobody's fault (infrastructure, a judge), none of its numbers is given, on either track.

Beside them: survival curves, step of the first failure, partial credit, distance to the baselines, confidence intervals
that take tasks as clusters, paired comparison, agreement of judges. All pure; scipy and krippendorff are imported where
they are used. Left out: files and tables.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from .episodes import Episode
from .judges import CRITERIA, ORDERED, STEP_METRICS, prefix_score

if TYPE_CHECKING:
    from ..tasks import Track

METRICS: dict[Track, tuple[str, ...]] = {
    "online": ("S_ad", "S_id", "S_use", "S_cp", "S_rd", "S_mp"),
    "offline": ("S_ele", "S_lay", "S_sig", "S_dino", "S_ad", "S_id", "S_use", "S_cp", "S_rd", "S_rap"),
}
"""The official metrics of each track, in the order of the tables."""
PER_STEP: dict[Track, tuple[str, ...]] = {
    "online": ("S_ad", "S_id", "S_use"),
    "offline": ("S_ele", "S_lay", "S_sig", "S_dino", "S_ad", "S_id", "S_use"),
}
"""Those that are scored per transition."""
PER_EPISODE = ("S_cp", "S_rd")
BASELINES = ("copy_last", "blank", "browser")
"""The rows that every table shows a model against; `browser` is the real page."""
SURVIVES: dict[str, float] = {"S_ad": 0.8, "consistent": 0.5}
"""From which score on a transition counts as consistent in survival curves: at 8 of 10 the judge's scale begins to
speak of the full effect; at .5 of `measure.steps_of`'s course half of the change is made and the rest kept."""
RESAMPLES = 10_000

Steps = Mapping[str, Sequence[float | None]]
"""Scores per transition, by metric; None where a metric is not defined for a transition."""


# ---- one episode -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EpisodeScores:
    """What one episode scored.

    Attributes:
        metrics: the track's official metrics; None where the task does not define one (S_mp without milestones). Empty
            while `missing` is not.
        steps: scores per transition reached, official and local ones.
        failure: of a model failure, {"kind": "model", "code", …}.
        missing: what keeps the episode from being scored, one line each; empty if it is.
        planned: number of transitions that the fixed denominator of partial credit counts.
    """

    task_id: str
    metrics: Mapping[str, float | None]
    steps: Steps = field(default_factory=dict)
    failure: Mapping[str, Any] | None = None
    missing: tuple[str, ...] = ()
    planned: int = 0


def score_episode(
    episode: Episode,
    judged: Mapping[str, Mapping[str, Any]],
    measured: Steps | None = None,
    left_out: Collection[str] = (),
) -> EpisodeScores:
    """Scores of one episode from its judge records and measured steps.

    Args:
        judged: {call name: record} of one judge, as `judges.judge_episode` returns them.
        measured: per transition of `episode.transitions`: S_sig and S_dino on the offline track (both official), and
            any local metrics.
        left_out: of S_sig and S_dino, those without configured weights: they are None, and so is Overall.

    An episode that ends with its first action has no transition: its transition metrics are 0.0 (GUI-CC's rule). A
    score that is not a finite number in [0, 1] counts as missing.
    """
    task, track = episode.task, episode.task.track
    reached = len(episode.transitions)
    measured = dict(measured or {})
    planned = task.step_budget if track == "offline" else reached + (episode.failure is not None)
    if episode.failure is not None and episode.failure.get("kind") == "model":
        zeros: dict[str, float | None] = {name: None if name in left_out else 0.0 for name in METRICS[track]}
        return EpisodeScores(task.task_id, zeros, measured, dict(episode.failure), planned=planned)
    if episode.failure is not None:
        line = f"the rollout stopped: {episode.failure.get('code', 'infrastructure failure')}"
        return EpisodeScores(task.task_id, {}, measured, missing=(line,), planned=planned)

    missing: list[str] = []
    steps: dict[str, Sequence[float | None]] = dict(measured)
    for call in STEP_METRICS[track]:
        for metric in ("S_ele", "S_lay") if call == "S_ele_lay" else (call,):
            names = [f"{call}_step_{step:03d}" for step in episode.transitions]
            steps[metric] = [_judged(judged, name, metric, missing) for name in names]
    metrics: dict[str, float | None] = {}
    for metric in PER_STEP[track]:
        values = steps.get(metric)
        if metric in left_out:
            metrics[metric] = None
        elif values is None and reached:
            missing.append(f"{metric}: not measured")
        elif values is not None and len(values) != reached:
            missing.append(f"{metric}: {len(values)} scores for {reached} transitions")
        else:
            metrics[metric] = _mean_of(metric, values or (), missing)
    for metric in PER_EPISODE:
        metrics[metric] = _judged(judged, metric, metric, missing)
    ordered = ORDERED[track]
    metrics[ordered] = _ordered(episode, ordered, judged, missing)
    return EpisodeScores(task.task_id, {} if missing else metrics, steps, None, tuple(missing), planned)


def _judged(judged: Mapping[str, Mapping[str, Any]], name: str, metric: str, missing: list[str]) -> float | None:
    record = judged.get(name)
    if record is None:
        missing.append(f"{name}: not judged")
        return None
    result = record.get("result")
    scores = result.get("scores") if isinstance(result, Mapping) else None
    value = scores.get(metric) if isinstance(scores, Mapping) else None
    if not is_score(value):
        missing.append(f"{name}: {metric} is {value!r}, not a number in [0, 1]")
        return None
    return float(value)


def _mean_of(metric: str, values: Sequence[float | None], missing: list[str]) -> float | None:
    if not values:
        return 0.0
    bad = [f"{metric}: score {step} is {value!r}" for step, value in enumerate(values) if not is_score(value)]
    if bad:
        # A judged score that is missing has been named already.
        missing += [line for line in bad if metric in ("S_sig", "S_dino")]
        return None
    return math.fsum(value for value in values if value is not None) / len(values)


def _ordered(
    episode: Episode, metric: str, judged: Mapping[str, Mapping[str, Any]], missing: list[str]
) -> float | None:
    total = len(episode.actions) if metric == "S_rap" else len(episode.task.milestones)
    if total == 0:
        return None
    results: list[Mapping[str, Any]] = []
    while (record := judged.get(f"{metric}_step_{len(results):03d}")) is not None and len(results) < total:
        result = record.get("result")
        if not isinstance(result, Mapping) or result.get("passed") not in (0, 1):
            missing.append(f"{metric}_step_{len(results):03d}: no verdict")
            return None
        results.append(result)
        if not result["passed"]:
            break
    try:
        return prefix_score(results, total)
    except ValueError as error:
        missing.append(f"{metric}: {error}")
        return None


def is_score(value: Any) -> TypeGuard[float]:
    """Whether `value` is a finite number in [0, 1] (and not a bool)."""
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0.0 <= value <= 1.0


# ---- one row -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowScores:
    """The official numbers of one row.

    Attributes:
        scope: full or partial (a selection of the task set).
        status: complete or blocked.
        requested: size of the fixed denominator.
        model_failures: how often each code occurred; these episodes scored 0.
        blocked: {task id: what is missing}; with any entry no number is given.
        command: what to run to go on, where blocked.
        metrics: official metrics in [0, 1]; None where blocked or where no task defines the metric for all episodes.
        overall: unweighted mean of the track's metrics; None where blocked, partial, or a metric is None.
        undefined: {metric: number of tasks that do not define it}.
    """

    track: Track
    scope: Literal["full", "partial"]
    status: Literal["complete", "blocked"]
    requested: int
    model_failures: Mapping[str, int]
    blocked: Mapping[str, tuple[str, ...]]
    command: str | None
    metrics: Mapping[str, float | None]
    overall: float | None
    undefined: Mapping[str, int]

    def percent(self) -> dict[str, float | None]:
        """All metrics and Overall times 100, rounded to one decimal: the numbers of the tables."""
        return {name: percent(value) for name, value in {**self.metrics, "Overall": self.overall}.items()}


def aggregate_row(
    track: Track,
    requested: Sequence[str],
    scores: Mapping[str, EpisodeScores],
    *,
    full: bool,
    command: str = "snakemake scores",
) -> RowScores:
    """The row over exactly the `requested` tasks; scores of others are ignored, a task without any blocks.

    Args:
        full: whether `requested` is the whole task set.
        command: named in a blocked row as the way to go on.
    """
    if not requested:
        raise ValueError("a row needs at least one task")
    blocked: dict[str, tuple[str, ...]] = {}
    failures: Counter[str] = Counter()
    for task_id in requested:
        episode = scores.get(task_id)
        if episode is None:
            blocked[task_id] = ("no rollout",)
        elif episode.missing:
            blocked[task_id] = episode.missing
        elif episode.failure is not None:
            failures[str(episode.failure.get("code", "unknown"))] += 1
    metrics: dict[str, float | None] = dict.fromkeys(METRICS[track])
    undefined: dict[str, int] = {}
    if not blocked:
        for metric in METRICS[track]:
            values = [scores[task_id].metrics[metric] for task_id in requested]
            known = [value for value in values if value is not None]
            if len(known) == len(values):
                metrics[metric] = math.fsum(known) / len(requested)
            else:
                undefined[metric] = len(values) - len(known)
    return RowScores(
        track,
        "full" if full else "partial",
        "blocked" if blocked else "complete",
        len(requested),
        dict(failures),
        blocked,
        command if blocked else None,
        metrics,
        overall(metrics) if full else None,
        undefined,
    )


def overall(metrics: Mapping[str, float | None]) -> float | None:
    """Unweighted mean of a track's metrics; None if any is None."""
    values = [value for value in metrics.values() if value is not None]
    return math.fsum(values) / len(values) if values and len(values) == len(metrics) else None


def percent(value: float | None) -> float | None:
    """A score times 100 with one decimal."""
    return None if value is None else round(value * 100, 1)


@dataclass(frozen=True)
class LocalMean:
    """A local metric of one row: mean over the `tasks` that have a value, and how many those are."""

    value: float | None
    tasks: int


def local_mean(requested: Sequence[str], scores: Mapping[str, EpisodeScores], metric: str) -> LocalMean:
    """Mean over transitions, then episodes, of a local metric; model failures score 0.

    An episode none of whose transitions has the metric (nothing changed, no true screen) is left out, not counted as 0.
    """
    means = []
    for task_id in requested:
        episode = scores.get(task_id)
        if episode is None:
            continue
        values = [value for value in episode.steps.get(metric, ()) if value is not None]
        if episode.failure is not None:
            means.append(0.0)
        elif values:
            means.append(math.fsum(values) / len(values))
    return LocalMean(math.fsum(means) / len(means) if means else None, len(means))


def relative(value: float | None, baselines: Mapping[str, float | None]) -> dict[str, float | None]:
    """A score against those of the baseline rows.

    Returns:
        ``over_{name}`` = value - baseline for each of BASELINES, and ``skill`` = (value - copy_last) / (browser -
        copy_last): 0 is a copy of the last screen, 1 the real page. None where a number is missing; skill also where
        the two baselines agree to 1e-9.
    """
    known = {name: baselines.get(name) for name in BASELINES}
    row: dict[str, float | None] = {}
    for name, baseline in known.items():
        row[f"over_{name}"] = None if value is None or baseline is None else value - baseline
    copy, best = known["copy_last"], known["browser"]
    defined = value is not None and copy is not None and best is not None and abs(best - copy) > 1e-9
    row["skill"] = (value - copy) / (best - copy) if defined else None  # type: ignore[operator]
    return row


# ---- how long it holds -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Course:
    """Scores of an episode's transitions in order, and whether a model failure came after the last one.

    A None (a metric that is not defined for that transition) is no evidence against the episode.
    """

    values: Sequence[float | None]
    failed: bool = False

    def first_failure(self, threshold: float) -> int | None:
        """Number, from 0 on, of the first transition below `threshold`, or of the model failure; None if none is."""
        for step, value in enumerate(self.values):
            if value is not None and value < threshold:
                return step
        return len(self.values) if self.failed else None


@dataclass(frozen=True)
class Survival:
    """One point of a survival curve, after `step` transitions.

    Attributes:
        share: share of all episodes whose first `step` transitions (or all, of a shorter one) are consistent.
        at_risk: episodes that were consistent so far and have a transition number `step`.
        failed: those of them that failed at it.
        product_limit: Kaplan–Meier estimate ∏ (1 - failed / at_risk), which takes episodes that ended as censored
            rather than as survivors. Source: Kaplan, Meier 1958, doi:10.1080/01621459.1958.10501452.
    """

    step: int
    share: float
    at_risk: int
    failed: int
    product_limit: float


def survival(courses: Sequence[Course], threshold: float, horizon: int | None = None) -> list[Survival]:
    """The curve from 0 to `horizon` transitions (default: the longest course), the point at 0 being 1."""
    if not courses:
        return []
    ends = [course.first_failure(threshold) for course in courses]
    lengths = [len(course.values) + course.failed for course in courses]
    curve = [Survival(0, 1.0, len(courses), 0, 1.0)]
    for step in range(1, (max(lengths) if horizon is None else horizon) + 1):
        alive = [end is None or end >= step - 1 for end in ends]
        at_risk = sum(ok and length >= step for ok, length in zip(alive, lengths, strict=True))
        failed = sum(end == step - 1 for end in ends)
        share = sum(end is None or end >= step for end in ends) / len(courses)
        limit = curve[-1].product_limit * (1 - failed / at_risk if at_risk else 1.0)
        curve.append(Survival(step, share, at_risk, failed, limit))
    return curve


def partial_credit(course: Course, planned: int) -> float:
    """Sum of the scores reached over the number of transitions planned: what GUI-CC's zero rule hides.

    A missing transition, and one that failed, counts 0. With nothing planned it is 0.0.
    """
    values = [value for value in course.values if value is not None]
    undefined = len(course.values) - len(values)
    return math.fsum(values) / (planned - undefined) if planned > undefined else 0.0


# ---- how sure one can be -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interval:
    """A mean with a confidence interval; `low` and `high` are None where one task alone gives no interval."""

    mean: float
    low: float | None
    high: float | None
    tasks: int
    values: int


def interval(values: Mapping[str, Sequence[float]], seed: int, level: float = 0.95) -> Interval:
    """Mean over tasks of their mean over repeats, and its percentile bootstrap interval with tasks as clusters.

    Whole tasks are drawn with replacement, all their repeats together, since repeats of a task are not independent.
    Source: Efron, Tibshirani 1993, ch. 13; clusters: Field, Welsh 2007, doi:10.1111/j.1467-9868.2007.00593.x.

    Args:
        values: {task id: one value per repeat}; every task at least one.
        seed: of the resampling; the order of the tasks does not matter.
    """
    import numpy as np

    means = _task_means(values)
    count = sum(len(repeats) for repeats in values.values())
    mean = math.fsum(means) / len(means)
    if len(means) < 2:
        return Interval(mean, None, None, len(means), count)
    from scipy.stats import bootstrap

    found = bootstrap(
        (np.array(means),),
        np.mean,
        confidence_level=level,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(seed),
        batch=1000,
    ).confidence_interval
    return Interval(mean, float(found.low), float(found.high), len(means), count)


@dataclass(frozen=True)
class Paired:
    """Two rows on the same tasks: difference a - b with interval, and p of a sign-flip permutation test (two-sided).

    `left_out` counts tasks that only one of the rows has.
    """

    difference: float
    low: float | None
    high: float | None
    p: float
    tasks: int
    left_out: int


def paired(
    a: Mapping[str, Sequence[float]], b: Mapping[str, Sequence[float]], seed: int, level: float = 0.95
) -> Paired:
    """Compares two rows task by task; repeats are averaged within a task first.

    The permutation test flips the sign of each task's difference: exact where 2^tasks does not exceed RESAMPLES, else
    on that many seeded draws. Raises ValueError where the rows share no task.
    """
    import numpy as np

    common = sorted(set(a) & set(b))
    if not common:
        raise ValueError("the two rows have no task in common")
    first, second = (np.array(_task_means({task: row[task] for task in common})) for row in (a, b))
    spread = interval({task: [float(value)] for task, value in zip(common, first - second, strict=True)}, seed, level)
    left_out = len(set(a) ^ set(b))
    if len(common) == 1:  # either sign is as far from 0, and scipy refuses to ask
        return Paired(spread.mean, None, None, 1.0, 1, left_out)
    from scipy.stats import permutation_test

    test = permutation_test(
        (first, second),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=1000,
        rng=np.random.default_rng(seed),
    )
    return Paired(spread.mean, spread.low, spread.high, float(test.pvalue), len(common), left_out)


def _task_means(values: Mapping[str, Sequence[float]]) -> list[float]:
    if not values or not all(len(repeats) for repeats in values.values()):
        raise ValueError("every task needs at least one value")
    bad = {task: repeats for task, repeats in values.items() if not all(map(math.isfinite, repeats))}
    if bad:
        raise ValueError(f"values must be finite: {bad}")
    return [math.fsum(values[task]) / len(values[task]) for task in sorted(values)]


@dataclass(frozen=True)
class Agreement:
    """How far judges agree on the same items.

    Attributes:
        judges: number of judges.
        items: items that at least two judges rated.
        exact: share of these on which all their ratings are equal; None without items.
        cohen_kappa: two judges only; None where chance alone explains all (both always say the same).
            Source: Cohen 1960, doi:10.1177/001316446002000104.
        krippendorff_alpha: any number of judges, gaps allowed; None where all ratings are one value.
            Source: Krippendorff 2011, repository.upenn.edu/asc_papers/43; computed by the krippendorff package.
    """

    judges: int
    items: int
    exact: float | None
    cohen_kappa: float | None
    krippendorff_alpha: float | None


def agreement(ratings: Sequence[Sequence[float | None]], level: Literal["nominal", "ordinal", "interval"]) -> Agreement:
    """Agreement of judges.

    Args:
        ratings: one sequence per judge, items in the same order, None where a judge did not rate.
        level: nominal for classes and binaries, ordinal for ratings such as S_ad's.
    """
    if len(ratings) < 2 or len({len(row) for row in ratings}) != 1:
        raise ValueError("agreement needs two or more judges and as many ratings of each")
    items = [[value for value in item if value is not None] for item in zip(*ratings, strict=True)]
    shared = [item for item in items if len(item) > 1]
    if not shared:
        return Agreement(len(ratings), 0, None, None, None)
    exact = sum(len(set(item)) == 1 for item in shared) / len(shared)
    alpha = None
    if len({value for item in shared for value in item}) > 1:
        import krippendorff
        import numpy as np

        table = np.array([[np.nan if value is None else float(value) for value in row] for row in ratings])
        alpha = float(krippendorff.alpha(reliability_data=table, level_of_measurement=level))
    kappa = _cohen([(item[0], item[1]) for item in shared]) if len(ratings) == 2 else None
    return Agreement(len(ratings), len(shared), exact, kappa, alpha)


def _cohen(pairs: Sequence[tuple[float, float]]) -> float | None:
    observed = sum(a == b for a, b in pairs) / len(pairs)
    first, second = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    chance = sum(first[value] * second[value] for value in first) / len(pairs) ** 2
    return None if chance == 1 else (observed - chance) / (1 - chance)


def rating_level(name: str) -> Literal["nominal", "ordinal"]:
    """The level at which judges' ratings of this name (see `ratings_of`) are compared: that of a scale is ordinal."""
    return "ordinal" if name.startswith(("S_ad", "S_ele_lay")) else "nominal"


def ratings_of(judged: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """All single ratings of one judge: {"S_ad_step_000": 8.0, "S_cp/C1_step_continuity": 1.0, …}, for `agreement`.

    S_id's class is given by its number in `judges.CLASSES`.
    """
    from .judges import CLASSES

    found: dict[str, float] = {}
    for name, record in judged.items():
        result, metric = record["result"], record["metric"]
        if metric == "S_id":
            found[name] = float(CLASSES.index(result["inferred"]))
        elif metric == "S_ele_lay":
            found |= {f"{name}/{key}": float(value) for key, value in result["raw"].items()}
        elif metric in CRITERIA:
            found |= {f"{name}/{key}": float(value) for key, value in result["criteria"].items()}
        elif metric == "S_mp":
            found[name] = float(result["passed"])
        else:
            found[name] = float(result["raw"])
    return found
