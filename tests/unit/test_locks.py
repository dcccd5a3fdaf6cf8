import subprocess
import sys

import pytest

from workflow_scripts.failures import InvalidInput
from workflow_scripts.locks import TargetLocks

HOLD = """
import sys, time
from workflow_scripts.locks import TargetLocks
locks = TargetLocks(sys.argv[1])
locks.acquire(sys.argv[2:])
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "locks"), "a", "b"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_overlap_is_refused_and_names_the_owner_disjoint_is_not(tmp_path, holder):
    mine = TargetLocks(tmp_path / "locks")
    with pytest.raises(InvalidInput, match=f"process {holder.pid}"):
        mine.acquire(["c", "b"])
    mine.acquire(["c", "d"])


def test_a_killed_owner_leaves_nothing_to_unlock(tmp_path, holder):
    holder.kill()
    holder.wait()
    TargetLocks(tmp_path / "locks").acquire(["a", "b"])
