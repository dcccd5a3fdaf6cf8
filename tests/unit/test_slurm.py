"""From the `slurm:` block to what a job asks for."""

import pytest

from workflow_scripts.config import validated
from workflow_scripts.failures import InvalidInput
from workflow_scripts.slurm import Slurm, parsed_time

BLOCK = {
    "default": {"partition": "main", "account": "lab", "runtime_min": 60, "mem_mb": 1000, "cpus": 2},
    "gpu_shard": {"partition": "gpu", "gres": "gpu:1", "mem_mb": 9000},
    "train": {"gres": "", "extra": "--nice=5"},
}


def block(**changes) -> Slurm:
    return validated(Slurm, {**BLOCK, **changes}, ("slurm",))


def test_a_kind_of_job_takes_what_it_does_not_say_from_the_default():
    asked = block().resources("gpu_shard")
    assert asked["slurm_partition"] == "gpu"
    assert asked["slurm_account"] == "lab"
    assert (asked["gres"], asked["runtime"], asked["mem_mb"], asked["cpus_per_task"]) == ("gpu:1", 60, 9000, 2)
    assert asked["qos"] is None


def test_nothing_is_asked_for_where_nothing_is_said():
    asked = validated(Slurm, {}, ("slurm",)).resources("cpu_shard")
    assert {name for name, value in asked.items() if value is not None} == {"slurm_extra"}


def test_an_empty_gres_takes_a_default_gpu_away_and_further_options_pass():
    asked = block(default={"gres": "gpu:1"}).resources("train", after=["12", "13"])
    assert asked["gres"] is None
    assert asked["slurm_extra"].endswith("--dependency=afterany:12:13 --nice=5")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1:05", 65), ("10:00", 600), ("2:00:00", 7200), ("1-00:00:01", 86401), ("infinite", None), ("UNLIMITED", None)],
)
def test_times_as_slurm_writes_them(text, seconds):
    assert parsed_time(text) == seconds


def test_an_unknown_key_is_refused_with_the_nearest():
    with pytest.raises(InvalidInput, match="a known key") as refused:
        block(gpu_shard={"partitoin": "gpu"})
    assert refused.value.key == "slurm.gpu_shard.partitoin"
